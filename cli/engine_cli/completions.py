"""`engine completions`: a shell script that completes without starting Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from shlex import quote

import click

from engine_cli.command_tree import Node, walk
from engine_cli.examples import with_examples
from engine_cli.state import command_settings, debug_option

_BASH = """\
# Completion of `engine`, with the plugins that were installed when it was written.
_engine_words() {
    # the words that may follow the command $1
    case "$1" in
%(words)s
    esac
}
_engine_values() {
    # the values of the flag $2 of the command $1; fails when the flag takes none
    case "$1 $2" in
%(values)s
    *) return 1 ;;
    esac
}
_engine() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    local command=engine word children index values
    for ((index = 1; index < COMP_CWORD; index++)); do
        word=${COMP_WORDS[index]}
        children=" $(_engine_words "$command") "
        case "$word" in -*) continue ;; esac
        case "$children" in *" $word "*) command="$command $word" ;; esac
    done
    COMPREPLY=()
    if values=$(_engine_values "$command" "$previous"); then
        [ "$values" = - ] && return
        COMPREPLY=($(compgen -W "$values" -- "$current"))
        return
    fi
    values=$(_engine_words "$command")
    COMPREPLY=($(compgen -W "$values" -- "$current"))
}
complete -o default -F _engine engine
"""
_ZSH = """\
# For zsh, whose bashcompinit runs what follows.
(( $+functions[compdef] )) || { autoload -U +X compinit && compinit }
autoload -U +X bashcompinit && bashcompinit
"""


def _bash(nodes: list[Node]) -> str:
    words, values = [], []
    for node in nodes:
        name = " ".join(("engine", *node.path))
        following = (*node.children, *dict.fromkeys(flag.name for flag in node.flags))
        words.append(f"    {quote(name)}) echo {quote(' '.join(following))} ;;")
        for flag in node.flags:
            if flag.takes_value:
                # A dash stands for "anything", for which the shell completes files.
                text = " ".join(flag.values) or "-"
                values.append(f"    {quote(f'{name} {flag.name}')}) echo {quote(text)} ;;")
    return _BASH % {"words": "\n".join(words), "values": "\n".join(values)}


def _zsh(nodes: list[Node]) -> str:
    return _ZSH + _bash(nodes)


def _fish(nodes: list[Node]) -> str:
    return "\n".join(["complete -c engine -f", *_fish_lines(nodes)]) + "\n"


def _fish_lines(nodes: list[Node]) -> Iterator[str]:
    by_path = {node.path: node for node in nodes}
    for node in nodes:
        condition = quote(_fish_condition(node))
        for name in node.children:
            child = by_path.get((*node.path, name))
            summary = quote(child.summary if child else "")
            yield f"complete -c engine -n {condition} -a {quote(name)} -d {summary}"
        for flag in node.flags:
            kind, bare = (
                ("-l", flag.name[2:]) if flag.name.startswith("--") else ("-s", flag.name[1:])
            )
            if kind == "-s" and len(bare) > 1:
                kind = "-o"
            value = f" -xa {quote(' '.join(flag.values))}" if flag.values else ""
            value = value or (" -rF" if flag.takes_value else "")
            text = f" -d {quote(flag.help)}" if flag.help else ""
            yield f"complete -c engine -n {condition} {kind} {quote(bare)}{value}{text}"


def _fish_spelling(flag: str) -> tuple[str, str]:
    """Return how fish is told of a flag: `--long`, `-s` or `-old`."""
    if flag.startswith("--"):
        return "-l", flag[2:]
    return ("-s" if len(flag) == 2 else "-o"), flag[1:]


def _fish_condition(node: Node) -> str:
    seen = [f"__fish_seen_subcommand_from {word}" for word in node.path]
    if node.children:
        seen.append(f"not __fish_seen_subcommand_from {' '.join(node.children)}")
    return "; and ".join(seen) or "true"


_SHELLS: Mapping[str, Callable[[list[Node]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}


def _completions(shell: str) -> None:
    from engine_cli.main import cli

    context = click.get_current_context().find_root()
    click.echo(_SHELLS[shell](list(walk(cli, context))), nl=False)


completions = click.Command(
    "completions",
    callback=_completions,
    context_settings=command_settings(),
    params=[click.Argument(["shell"], type=click.Choice(list(_SHELLS))), debug_option()],
    help=with_examples(
        "Print a script that completes commands, flags, choices and the names of the plugins that "
        "are installed now. Write it again when plugins come or go.",
        "engine completions bash > ~/.local/share/bash-completion/completions/engine",
        "engine completions zsh >> ~/.zshrc",
        "engine completions fish > ~/.config/fish/completions/engine.fish",
    ),
)
