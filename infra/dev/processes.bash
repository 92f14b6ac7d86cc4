# Processes in the background, and servers that are built from them. Sourced by `bench` and `cluster`, which set `dir`.

cueline=${CUELINE:-$PWD/target/quick/cueline}
names=()
declare -A pids commands

fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

[ -x "$cueline" ] || fail "build first: make"

# PostgreSQL refuses to run as root: then it runs as a user without rights.
as_user=()
if [ "$(id -u)" = 0 ]; then
    as_user=(setpriv --reuid=nobody --regid=nogroup --clear-groups)
fi

# start NAME COMMAND…: starts a command in a session of its own, so that Ctrl-C does not reach it. Its output goes to a file.
start() {
    local name=$1
    shift
    [ -n "${commands[$name]:-}" ] || names+=("$name")
    commands[$name]=$(printf '%q ' "$@")
    setsid "$@" >>"$dir/log/$name.log" 2>&1 &
    pids[$name]=$!
}

# Ends everything, the latest first: workers report to schedulers, and those write to the store.
stop_all() {
    trap - EXIT
    trap '' INT TERM
    local i name signal
    for ((i = ${#names[@]} - 1; i >= 0; i--)); do
        name=${names[i]}
        case "$name" in
            # Ends at once, instead of waiting for its clients.
            postgres) signal=(-INT "${pids[$name]}") ;;
            # The script that starts the server does not forward signals.
            rabbitmq) signal=(-TERM -- "-${pids[$name]}") ;;
            *) signal=(-TERM "${pids[$name]}") ;;
        esac
        kill "${signal[@]}" 2>/dev/null || continue
        wait "${pids[$name]}" 2>/dev/null || true
    done
}

# Starts each process that ends again, until this script is ended.
supervise() {
    local ended name status
    while true; do
        status=0
        wait -n -p ended "${pids[@]}" 2>/dev/null || status=$?
        for name in "${names[@]}"; do
            if [ "${pids[$name]}" = "${ended:-}" ]; then
                printf '%s %s ended with status %s; starting it again. Its output: %s\n' "$(date +%T)" "$name" "$status" "$dir/log/$name.log"
                sleep 1
                eval "start $name ${commands[$name]}"
            fi
        done
    done
}

# within SECONDS COMMAND…: repeats a command until it succeeds.
within() {
    local seconds=$1
    shift
    for _ in $(seq $((seconds * 10))); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.1
    done
    tail -n 20 "$dir"/log/*.log >&2
    fail "not within $seconds s: $*"
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

listens() { bash -c "exec 3<>/dev/tcp/127.0.0.1/$1"; }

# start_postgres PORT [OPTION…]: the address of its database is in `store`.
start_postgres() {
    local port=$1 pg
    shift
    pg=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1)
    [ -n "$pg" ] || fail "PostgreSQL is missing: infra/dev/servers postgres"
    if [ ! -e "$dir/postgres/PG_VERSION" ]; then
        mkdir -p "$dir/postgres"
        [ "$(id -u)" != 0 ] || chown nobody:nogroup "$dir/postgres"
        (cd / && "${as_user[@]}" "$pg/initdb" -D "$dir/postgres" -U cueline --auth=trust) >"$dir/log/initdb.log"
    fi
    start postgres "${as_user[@]}" "$pg/postgres" -D "$dir/postgres" -p "$port" -c listen_addresses=127.0.0.1 -c unix_socket_directories= "$@"
    within 30 "$pg/pg_isready" -h 127.0.0.1 -p "$port"
    "$pg/psql" -q -h 127.0.0.1 -p "$port" -U cueline -d postgres -tc "SELECT 1 FROM pg_database WHERE datname = 'cueline'" | grep -q 1 ||
        "$pg/createdb" -h 127.0.0.1 -p "$port" -U cueline cueline
    store=postgres://cueline@127.0.0.1:$port/cueline
}

# start_nats PORT [SYNC INTERVAL]: its address is in `broker_url`.
start_nats() {
    local port=$1 sync=${2:-} program
    program=$(ls -d "$PWD"/target/servers/nats-*/nats-server 2>/dev/null | sort -V | tail -1) || true
    [ -n "$program" ] || fail "NATS is missing: infra/dev/servers nats"
    printf 'listen: "127.0.0.1:%s"\njetstream { store_dir: "%s"%s }\n' "$port" "$dir/nats" "${sync:+, sync_interval: $sync}" >"$dir/nats.conf"
    start nats "$program" -c "$dir/nats.conf"
    within 10 listens "$port"
    broker_url=nats://127.0.0.1:$port
}

# start_rabbitmq PORT DISTRIBUTION-PORT MAPPER-PORT: its address is in `broker_url`.
start_rabbitmq() {
    local port=$1 program=/usr/lib/rabbitmq/bin/rabbitmq-server
    [ -x "$program" ] || fail "RabbitMQ is missing: infra/dev/servers rabbitmq"
    mkdir -p "$dir/rabbitmq"
    printf 'listeners.tcp.1 = 127.0.0.1:%s\n' "$port" >"$dir/rabbitmq/rabbitmq.conf"
    # RabbitMQ itself would start a port mapper that survives it.
    start epmd epmd -address 127.0.0.1 -port "$3"
    within 10 listens "$3"
    start rabbitmq env HOME="$dir/rabbitmq" ERL_EPMD_PORT="$3" ERL_EPMD_ADDRESS=127.0.0.1 RABBITMQ_NODENAME=cueline@localhost \
        RABBITMQ_DIST_PORT="$2" RABBITMQ_CONFIG_FILE="$dir/rabbitmq/rabbitmq" RABBITMQ_MNESIA_BASE="$dir/rabbitmq/data" \
        RABBITMQ_LOG_BASE="$dir/log" RABBITMQ_ENABLED_PLUGINS_FILE="$dir/rabbitmq/plugins" \
        RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='+sbwt none +sbwtdcpu none +sbwtdio none' "$program"
    within 60 listens "$port"
    # The only user of a new server, and only on this machine: not for any other use.
    broker_url=amqp://guest:guest@127.0.0.1:$port
}
