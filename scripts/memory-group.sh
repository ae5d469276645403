# Sourced by the benchmarks whose target must not have more memory than it is given: a control group that counts the page cache
# too, where this machine lets us make one; and what they have in common beside it.
#
#     begin NAME              makes a scratch directory, $work; at the end of the script it is removed, and the server in $server stopped
#     stop_server             before that
#     limit NAME MEGABYTES    makes one, as $group (empty where it cannot be made); no_limit removes it when nothing runs in it
#     (within COMMAND…) &     the command in it, as the subshell's own process
group='' server='' work=''

begin() {
    work=$(mktemp -d "${TMPDIR:-/tmp}/$1.XXXXXX")
    trap finish EXIT
}

stop_server() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    [ -z "$server" ] || wait "$server" 2>/dev/null || true
    server=''
}

finish() {
    stop_server
    rm -rf "$work"
    no_limit
}

# A control group with the limit: version 1 or 2, or none.
limit() {
    local root
    for root in /sys/fs/cgroup/memory /sys/fs/cgroup; do
        local at=$root/pando-bench-$1-$$
        mkdir "$at" 2>/dev/null || continue
        if echo $(($2 << 20)) 2>/dev/null > "$at/memory.limit_in_bytes" ||
            echo $(($2 << 20)) 2>/dev/null > "$at/memory.max"; then
            group=$at
            return
        fi
        rmdir "$at" 2>/dev/null || true
    done
    group=''
}

no_limit() {
    [ -z "$group" ] || rmdir "$group" 2>/dev/null || true
    group=''
}

within() {
    if [ -n "$group" ]; then
        # The shell that becomes the command puts itself into the group first.
        exec sh -c 'echo $$ > "$0/cgroup.procs" && exec "$@"' "$group" "$@"
    fi
    exec "$@"
}
