#!/usr/bin/env python3
"""Man pages and shell completions from what the program itself says with --help.

    packaging/documents.py PANDO OUT

writes OUT/man/man1/*.1, OUT/completions/pando.bash, _pando and pando.fish. The help is the one source: an option that is
not in it is in none of the files, and a help whose form is not understood ends the run."""

import re
import subprocess
import sys
from pathlib import Path

OPTION = re.compile(r"^  (-[-\w]+(?:, -[-\w…]+)*)(?: ([A-Z<][^ ]*(?: [A-Z<][^ ]*)*))?(?:  +(.*))?$")
COMMAND = re.compile(r"^  ([a-z]+) {2,}(.*)$")


def said(program, *words):
    return subprocess.run([program, *words], check=True, capture_output=True, text=True, timeout=60).stdout


def commands(program):
    """The commands and what they are for."""
    found = [m.groups() for line in said(program, "--help").splitlines() if (m := COMMAND.match(line))]
    assert len(found) > 5, "the program's help names no commands"
    return dict(found)


def options(help_text):
    """The options of a help text: (names, value, text), in order."""
    found = []
    for line in help_text.splitlines():
        if m := OPTION.match(line):
            names = [n for n in m[1].split(", ") if "…" not in n]
            found.append([names, m[2] or "", m[3] or ""])
        elif found and line.startswith(" " * 10):
            found[-1][2] = f"{found[-1][2]} {line.strip()}".strip()
    return found


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text[:1] in (".", "'") else text


def page(name, purpose, version, help_text):
    """A man page: the help as it is, since its columns are laid out already."""
    body = "\n".join(roff(line) for line in help_text.rstrip().splitlines())
    return (f".TH {name.upper()} 1 \"\" \"PandoDB {version}\" \"PandoDB\"\n.SH NAME\n{roff(name)} \\- {roff(purpose)}\n"
            f".SH DESCRIPTION\n.nf\n{body}\n.fi\n.SH SEE ALSO\n.BR pando (1)\n")


def bash(of):
    cases = "".join(f"        {c}) words='{' '.join(n for names, _, _ in o for n in names)}' ;;\n" for c, o in of.items())
    return f"""# bash completion for pando, made from its help
_pando() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} words
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W '{' '.join(of)} --help --version' -- "$current"))
        return
    fi
    case ${{COMP_WORDS[1]}} in
{cases}        *) words= ;;
    esac
    if [[ $current == -* ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$current"))
    else
        COMPREPLY=($(compgen -f -- "$current"))
    fi
}}
complete -o filenames -F _pando pando
"""


def quoted(text):
    return text.replace("'", "").replace("[", "(").replace("]", ")").replace(":", " -")


def zsh(of, purposes):
    names = " ".join(f"'{c}:{quoted(purposes[c])}'" for c in of)
    cases = ""
    for command, found in of.items():
        specs = [f"'{n}{'=' if v else ''}[{quoted(t)}]{':' + quoted(v) + ':_files' if v else ''}'" for ns, v, t in found for n in ns]
        cases += f"        {command}) _arguments {' '.join(specs)} '*:file:_files' ;;\n"
    return f"""#compdef pando
# zsh completion for pando, made from its help
_pando() {{
    local -a commands=({names})
    if (( CURRENT == 2 )); then
        _describe command commands
        return
    fi
    local command=$words[2]
    shift words
    (( CURRENT-- ))
    case $command in
{cases}    esac
}}
_pando "$@"
"""


def fish(of, purposes):
    lines = ["# fish completion for pando, made from its help"]
    for command, found in of.items():
        lines.append(f"complete -c pando -n __fish_use_subcommand -a {command} -d '{quoted(purposes[command])}'")
        for names, value, text in found:
            for name in names:
                kind = "-l " + name[2:] if name.startswith("--") else "-s " + name[1:]
                lines.append(f"complete -c pando -n '__fish_seen_subcommand_from {command}' {kind}{' -r' if value else ''} -d '{quoted(text)}'")
    return "\n".join(lines) + "\n"


def main(program, out):
    version = said(program, "--version").split()[1]
    purposes = commands(program)
    # The laboratory is a program of its own, which need not be there.
    helps = {c: said(program, c, "--help") for c in purposes if c != "lab"}
    of = {c: options(text) for c, text in helps.items()}
    assert len(of["serve"]) > 20, "the options of pando serve were not understood"
    man, completions = Path(out, "man", "man1"), Path(out, "completions")
    man.mkdir(parents=True, exist_ok=True)
    completions.mkdir(parents=True, exist_ok=True)
    (man / "pando.1").write_text(page("pando", "a document database for MongoDB's drivers", version, said(program, "--help")))
    for command, text in helps.items():
        (man / f"pando-{command}.1").write_text(page(f"pando-{command}", purposes[command], version, text))
    (completions / "pando.bash").write_text(bash(of))
    (completions / "_pando").write_text(zsh(of, purposes))
    (completions / "pando.fish").write_text(fish(of, purposes))


if __name__ == "__main__":
    main(*sys.argv[1:])
