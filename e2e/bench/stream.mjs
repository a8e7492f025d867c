// A client that opens the event stream as the dashboard does, reads everything and keeps nothing, so that many of them cost this machine
// little.
//
// A WebSocket (RFC 6455) without extensions: the frames of the collector are counted and skipped, its pings are answered.

import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { createConnection } from "node:net";

const OPCODES = { text: 1, close: 8, ping: 9, pong: 10 };
/** Control frames have these opcodes and at most 125 bytes. */
const CONTROL_MIN = 8;
const CONNECT_MS = 15_000;

export class StreamClient {
  /** Bytes that the collector has sent. */
  bytes = 0;
  /** Why the stream ended; empty while it is open. */
  ended = "";
  #socket;
  /** Bytes that are not read yet: less than a frame. */
  #rest = Buffer.alloc(0);
  /** Bytes of the current frame that are still to come. */
  #skip = 0;

  constructor(socket) {
    this.#socket = socket;
  }

  /** Opens a stream and sends these requests. */
  static async open({ url, token }, requests) {
    const { host, hostname, port } = new URL(url);
    const socket = createConnection({ host: hostname, port: Number(port) });
    socket.setTimeout(CONNECT_MS, () => socket.destroy(new Error("the collector does not answer")));
    await once(socket, "connect");
    const client = new StreamClient(socket);
    socket.on("error", (error) => client.#end(error.message));
    socket.on("close", () => client.#end("the collector closed the connection"));
    socket.write(
      `GET /api/stream?lists=changes&frames=binary HTTP/1.1\r\nHost: ${host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n` +
        `Sec-WebSocket-Key: ${randomBytes(16).toString("base64")}\r\nAuthorization: Bearer ${token}\r\n\r\n`,
    );
    await client.#upgraded();
    socket.setTimeout(0);
    for (const request of requests) client.#send(OPCODES.text, Buffer.from(request));
    return client;
  }

  close() {
    this.#socket.destroy();
  }

  async #upgraded() {
    let head = Buffer.alloc(0);
    const late = AbortSignal.timeout(CONNECT_MS);
    while (!head.includes("\r\n\r\n")) {
      const [chunk] = await once(this.#socket, "data", { signal: late });
      head = Buffer.concat([head, chunk]);
    }
    const status = head.subarray(0, head.indexOf("\r\n")).toString();
    if (!status.startsWith("HTTP/1.1 101 ")) throw new Error(`the collector refused a stream: ${status}`);
    this.#read(head.subarray(head.indexOf("\r\n\r\n") + 4));
    this.#socket.on("data", (chunk) => this.#read(chunk));
  }

  #read(chunk) {
    this.bytes += chunk.length;
    const skipped = Math.min(this.#skip, chunk.length);
    this.#skip -= skipped;
    this.#rest = Buffer.concat([this.#rest, chunk.subarray(skipped)]);
    while (this.#skip === 0 && this.#takeFrame());
  }

  /** Takes a frame from the rest. Returns false if the rest has too few bytes for it. */
  #takeFrame() {
    const frame = frameHead(this.#rest);
    if (!frame) return false;
    const { opcode, begin, length } = frame;
    const there = Math.min(length, this.#rest.length - begin);
    if (opcode >= CONTROL_MIN && there < length) return false;
    const payload = this.#rest.subarray(begin, begin + there);
    this.#rest = this.#rest.subarray(begin + there);
    this.#skip = length - there;
    if (opcode === OPCODES.ping) this.#send(OPCODES.pong, payload);
    if (opcode === OPCODES.close) this.#end(payload.subarray(2).toString() || "the collector closed the stream");
    return true;
  }

  #send(opcode, payload) {
    this.#socket.write(clientFrame(opcode, payload));
  }

  #end(reason) {
    this.ended ||= reason;
  }
}

/** Returns opcode and length of the frame at the start of `bytes`, and where its payload begins; null if bytes are missing. */
function frameHead(bytes) {
  if (bytes.length < 2) return null;
  const short = bytes[1] & 0x7f;
  const begin = { 126: 4, 127: 10 }[short] ?? 2;
  if (bytes.length < begin) return null;
  const lengths = { 4: () => bytes.readUInt16BE(2), 10: () => Number(bytes.readBigUInt64BE(2)) };
  return { opcode: bytes[0] & 0x0f, begin, length: lengths[begin]?.() ?? short };
}

/** Returns a whole frame with a mask, as clients must send it. The payload has less than 64 KiB. */
function clientFrame(opcode, payload) {
  const mask = randomBytes(4);
  const isLong = payload.length > 125;
  const head = Buffer.alloc(isLong ? 4 : 2);
  head[0] = 0x80 | opcode;
  head[1] = 0x80 | (isLong ? 126 : payload.length);
  if (isLong) head.writeUInt16BE(payload.length, 2);
  return Buffer.concat([head, mask, payload.map((byte, at) => byte ^ mask[at % 4])]);
}
