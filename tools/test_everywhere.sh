#!/usr/bin/env bash
# Run the tests under one setting after another that another machine might have, and print one line for each.
#
#   tools/test_everywhere.sh                       # the whole suite, everywhere
#   tools/test_everywhere.sh tests/decoding        # what follows goes to pytest
#   ONLY="no-compiler time-zone" tools/test_everywhere.sh
#
# PYTHON is the interpreter (.venv/bin/python), WORKERS the number of processes (2), LOGS the folder for what pytest says
# (a new one). Settings that cannot apply on this machine are named with the reason. The exit status is 1 if any failed.
set -u
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-$PWD/.venv/bin/python}
WORKERS=${WORKERS:-2}
LOGS=${LOGS:-$(mktemp -d)}
mkdir -p "$LOGS"
worst=0
arguments=("$@")

is_wanted() { [ -z "${ONLY:-}" ] || [[ " $ONLY " == *" $1 "* ]]; }

skip() { # name, reason
  if is_wanted "$1"; then printf '%-16s not run: %s\n' "$1" "$2"; fi
}

# name, then what stands before the interpreter: assignments for `env`, or another command with its options
check() {
  local name=$1 began=$SECONDS code
  shift
  is_wanted "$name" || return 0
  env "$@" "$PYTHON" -m pytest -n "$WORKERS" -p no:cacheprovider "${arguments[@]}" >"$LOGS/$name.log" 2>&1
  code=$?
  if [ $code -ne 0 ]; then worst=1; fi
  printf '%-16s %s (%d s, exit %d)\n' "$name" "$(tail -n 1 "$LOGS/$name.log")" $((SECONDS - began)) $code
}

# Links to every command of PATH but compilers and git.
path_without_compilers() {
  local folder="$LOGS/commands" file
  mkdir -p "$folder"
  while IFS= read -r -d : from; do
    for file in "$from"/*; do
      case $(basename "$file") in
        *gcc* | *g++* | *clang* | cc | c++ | c89 | c99 | cpp | git | python*) ;;
        *) [ -x "$file" ] && [ ! -e "$folder/$(basename "$file")" ] && ln -s "$file" "$folder/" ;;
      esac
    done
  done <<<"$PATH:"
  echo "$(dirname "$PYTHON"):$folder"
}

# As somebody who is not root, over a copy of what git knows of, in a folder of their own.
as_ordinary_user() {
  local name=ordinary-user folder who=65534
  is_wanted $name || return 0
  if [ "$(id -u)" -ne 0 ]; then skip $name "all of the above ran as one"; return; fi
  local run=(setpriv "--reuid=$who" "--regid=$who" --clear-groups)
  if ! command -v setpriv >/dev/null; then skip $name "no setpriv"; return; fi
  if ! "${run[@]}" "$PYTHON" -c "import torch" 2>"$LOGS/$name.log"; then
    skip $name "user $who cannot run $PYTHON with torch; name one with PYTHON"
    return
  fi
  folder=$(mktemp -d)
  git ls-files -z --cached --others --exclude-standard | tar --null -T - -cf - | tar -xf - -C "$folder"
  mkdir "$folder/home" "$folder/tmp"
  chown -R $who:$who "$folder"
  (
    cd "$folder" || exit 1
    check $name "PYTHONPATH=$folder/src${PYTHONPATH:+:$PYTHONPATH}" "HOME=$folder/home" "TMPDIR=$folder/tmp" "${run[@]}"
    exit $worst
  ) || worst=1
  rm -rf "$folder"
}

machine=$(uname -m)
check plain
check aten-default ATEN_CPU_CAPABILITY=default
if [ "$machine" = x86_64 ]; then
  bare=$(path_without_compilers)
  check aten-avx2 ATEN_CPU_CAPABILITY=avx2
  check fbgemm-avx2 FBGEMM_ENABLE_INSTRUCTIONS=AVX2
  # Without a compiler the int8 products are torch's, and FBGEMM does them.
  check no-compiler-avx2 -u CC -u CXX "PATH=$bare" FBGEMM_ENABLE_INSTRUCTIONS=AVX2 ATEN_CPU_CAPABILITY=avx2
else
  for name in aten-avx2 fbgemm-avx2 no-compiler-avx2; do skip $name "AVX2 is x86's; this is $machine"; done
fi
check one-thread OMP_NUM_THREADS=1
check four-threads OMP_NUM_THREADS=4 OMP_WAIT_POLICY=passive # on fewer cores, waiting threads would hold up the others
check no-compiler -u CC -u CXX "PATH=${bare:-$(path_without_compilers)}"
check c-locale LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0
if locale -a 2>/dev/null | grep -qi '^tr_TR\.utf-\?8$'; then
  check turkish LC_ALL=tr_TR.UTF-8
else
  skip turkish "no locale tr_TR.UTF-8"
fi
check time-zone TZ=Asia/Kathmandu
check no-home HOME=/dev/null/home # nobody can make that, not even root
mkdir -p "$LOGS/a folder"
check space-in-tmp "TMPDIR=$LOGS/a folder"
as_ordinary_user
echo "logs: $LOGS"
exit $worst
