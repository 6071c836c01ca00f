#!/usr/bin/env bash
# newcomer.sh [WIDTH...]: the first hour in tmux terminals of these widths (80 and 160): the demo, then every command of docs/tutorial.md, each
# typed into its terminal and checked: it ends with 0, and with a word to the one who waits. Only ports are put in their place.
# Needs a clone that is set up, MariaDB's programs, and tmux. SHOW=1 prints what the terminals show. Leaves nothing.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
for program in tmux mariadbd mariadb; do
  PATH=$PATH:/usr/sbin command -v $program > /dev/null || { echo "newcomer.sh: $program is not installed" >&2; exit 2; }
done
[ -x .venv/bin/penstock ] || { echo "newcomer.sh: the clone is not set up; run make setup" >&2; exit 2; }

place=$(mktemp -d /tmp/penstock-newcomer-XXXXXX)
socket=penstock-newcomer-$$
tm() { tmux -L "$socket" "$@"; }
leave() {
  for terminal in 'terminal 3' 'terminal 2' 'terminal 1'; do tm send-keys -t "=first:$terminal" C-c 2> /dev/null || true; done
  tm send-keys -t '=first:terminal 1' 'C-\' 2> /dev/null || true # mariadbd ignores Ctrl-C.
  for _ in $(seq 150); do pgrep -f "$place" > /dev/null || break; sleep 0.2; done
  tm kill-server 2> /dev/null || true
  rm -rf "$place"
}
trap leave EXIT

fail() {
  printf 'newcomer.sh: %s; the terminal shows:\n' "$2" >&2
  screen "$1" >&2
  exit 1
}

screen() { tm capture-pane -p -J -S -3000 -t "=first:$1" | sed -e '/^ *$/d'; }

# await TERMINAL SECONDS PATTERN: waits until the terminal shows a line like it.
await() {
  local end=$((SECONDS + $2))
  until screen "$1" | grep -Eq -- "$3"; do
    [ "$SECONDS" -lt "$end" ] || fail "$1" "'$3' did not come in $2 s"
    sleep 0.2
  done
}

# enter TERMINAL COMMAND: types a command, whose lines are each a line.
enter() {
  tm clear-history -t "=first:$1"
  tm send-keys -t "=first:$1" -l -- "$2"
  tm send-keys -t "=first:$1" Enter
}

# The prompt has the number of the command and how the last one ended: "7: exit 0 $".
declare -A number
step() {
  local terminal=$1 command=$2 began=$SECONDS
  enter "$terminal" "$command"
  number[$terminal]=$((number[$terminal] + 1))
  # What was written last may have no line's end.
  await "$terminal" 240 "${number[$terminal]}: exit [0-9]+ \\\$ *$"
  screen "$terminal" | grep -q "${number[$terminal]}: exit 0 " || fail "$terminal" "it did not end with 0"
  printf '  %3d s  %s\n' $((SECONDS - began)) "${command%%$'\n'*}"
  if [ -n "${SHOW:-}" ]; then screen "$terminal" | sed -n "/^$((number[$terminal] - 1)): exit/,\$p" | sed 's/^/         | /'; fi
}

# The commands of the page, one to a record: its terminal, a tab, and the command with its lines.
commands() {
  .venv/bin/python - "$1" << 'PY'
import re, sys
page = open("docs/tutorial.md", encoding="utf-8").read().replace("3306", sys.argv[1])
for title, text in re.findall(r'^```sh title="([^"]*)"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL):
    # A command is a here-document, lines that go on after a backslash, or a line.
    for command in re.finditer(r"[^\n]*<<'(\w+)'\n.*?\n\1\n|(?:[^\n]*\\\n)+[^\n]*\n|[^\n]+\n", text, re.DOTALL):
        sys.stdout.write(f"{title}\t{command[0].rstrip()}\0")
PY
}

free_port() { .venv/bin/python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

walk() {
  local width=$1 home="$place/$1" port http as_root=
  port=$(free_port)
  http=$(free_port)
  if [ "$(id -u)" = 0 ]; then as_root=" --user=root"; fi
  mkdir -p "$home"
  cat > "$home/rc" << RC
export HOME='$home' PENSTOCK_SERVER=http://127.0.0.1:$http HISTFILE= PATH=\$PATH:/usr/sbin
. "$root/.venv/bin/activate"
PS1='\#: exit \$? \$ ' PS2=
cd
RC
  echo "$width columns"
  for terminal in 'terminal 3' 'terminal 1' 'terminal 2'; do
    local made=(new-window -d -t first)
    [ "$terminal" = 'terminal 3' ] && made=(-f /dev/null new-session -d -s first -x "$width" -y 50)
    tm "${made[@]}" -n "$terminal" "bash --noprofile --rcfile $home/rc"
    number[$terminal]=1
    await "$terminal" 30 '^1: exit 0 \$'
  done
  step 'terminal 3' 'penstock demo'
  await 'terminal 3' 1 '^verified: 4 tables, [0-9,]+ rows identical$'
  await 'terminal 3' 1 'delivered to files +[0-9,]+ +the same'
  while IFS=$'\t' read -r -d '' title command; do
    case "$title: $command" in
      every*) for terminal in 'terminal 1' 'terminal 2' 'terminal 3'; do step "$terminal" "$command"; done ;;
      *mariadb-install-db*) step "$title" "$command$as_root" ;;
      *mariadbd*)
        enter "$title" "$command$as_root"
        await "$title" 60 'ready for connections'
        ;;
      *"penstock server"*)
        # What follows is typed at once, as by one who does not wait for a server that starts.
        enter "$title" "$command --http-port $http"
        ;;
      *) step "$title" "$command" ;;
    esac
    case "$command" in
      'penstock verify'*) await "$title" 1 '^verified: [0-9]+ tables?, [0-9,]+ rows identical$' ;;
      'penstock feed pause'*) await "$title" 1 'paused' ;;
      'penstock feed remove'*) await "$title" 1 'removed' ;;
    esac
  done < <(commands "$port")
  for terminal in 'terminal 2' 'terminal 1'; do
    tm send-keys -t "=first:$terminal" C-c
    [ "$terminal" = 'terminal 1' ] && tm send-keys -t "=first:$terminal" 'C-\'
    await "$terminal" 60 '^[0-9]+: exit [0-9]+ \$ *$'
  done
  tm kill-server
}

[ "$#" != 0 ] || set -- 80 160
for width in "$@"; do walk "$width"; done
echo "the first hour works"
