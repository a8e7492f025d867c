"""The Markdown table of all parts."""

from . import machine, sheet


def markdown(parts):
    """A section for docs/hardware.md."""
    first = parts[0]["machine"]
    lines = [f"## {first['gpu'] or 'No GPU'}{' (SIMULATED)' if first['simulated'] else ''}", ""]
    lines += [f"{machine.in_words(first)}. Revision {first['revision']}, {parts[0]['started']}{', quick' if first['quick'] else ''}.", ""]
    total = {verdict: sum(row["verdict"] == verdict for part in parts for row in part["rows"]) for verdict in sheet.VERDICTS}
    lines += [", ".join(f"{count} {verdict}" for verdict, count in total.items()) + ".", ""]
    for part in parts:
        seconds = sum(step["seconds"] for step in part["steps"])
        lines += [f"### Part {part['part']} ({seconds:.0f} s)", "", "| step | what | verdict | Lockstep | reference | note |", "|---|---|---|---|---|---|"]
        for row in part["rows"]:
            verdict = f"**{row['verdict']}** {row['by']}".strip() if row["verdict"] in (sheet.DIFFERS, sheet.FAILED) else row["verdict"]
            cells = [row["step"], row["what"], verdict, row["found"], row["expected"], row["note"]]
            lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)
