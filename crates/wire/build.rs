//! Compiles the protocol without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/lockstep.proto");
    let files = protox::compile(["proto/lockstep.proto"], ["proto"])?;
    // The values of a frame are not copied out of the receive buffer until they are read as numbers.
    tonic_prost_build::configure()
        .bytes(".lockstep.wire.v1.Frame.values")
        .compile_fds(files)?;
    Ok(())
}
