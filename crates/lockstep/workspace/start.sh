#!/bin/bash
# Runs a workspace's two servers under tini, as the workspace's user. Ends when one of them ends. On SIGTERM it ends all processes.
#
#   /run/workspace   from the machine: jupyter.token, authorized_keys; created here at the first start: the SSH server's key
set -euo pipefail

readonly GIVEN=/run/workspace
readonly HOST_KEY=$GIVEN/ssh_host_ed25519_key

fail() {
    echo "workspace: $1" >&2
    exit 1
}

[[ -r $GIVEN/jupyter.token && -s $GIVEN/jupyter.token ]] \
    || fail "uid $(id -u) cannot read $GIVEN/jupyter.token: start it with \`lockstep workspace start\`, with an image built for that uid"

# The workspace keeps one key: with a new key at each start, SSH clients would report a possible attack.
[[ -s $HOST_KEY ]] || ssh-keygen -q -t ed25519 -N '' -C workspace -f "$HOST_KEY"

# A login gets the container's environment, except the variables that belong to a shell or a login.
install -d -m 0700 "$HOME/.ssh"
(
    umask 077
    while IFS= read -r -d '' variable; do
        case ${variable%%=*} in
            HOME | USER | LOGNAME | SHELL | MAIL | PWD | OLDPWD | SHLVL | TERM | HOSTNAME | _) continue ;;
            *[!A-Za-z0-9_]*) continue ;;
        esac
        [[ $variable == *$'\n'* ]] || printf '%s\n' "$variable"
    done < <(env -0) > "$HOME/.ssh/environment"
)

/usr/sbin/sshd -D -e -f /etc/ssh/workspace_sshd_config &
ssh=$!
# The token is in a file, so it does not appear in arguments, in `inspect`, or in the log.
JUPYTER_TOKEN_FILE=$GIVEN/jupyter.token python -m jupyterlab \
    --ServerApp.ip=0.0.0.0 --ServerApp.port=8888 --ServerApp.port_retries=0 --ServerApp.open_browser=False \
    --ServerApp.root_dir=/workspace &
jupyter=$!

# Sends SIGTERM to all processes of the workspace's user: servers, kernels, logins and their children; tini and this script stay. In
# the machine's process namespace (--pid=host) these would be all processes of the user, so only the servers get SIGTERM there.
leave() {
    trap '' TERM INT
    if ((PPID != 1)); then
        kill -TERM "$ssh" "$jupyter" 2>/dev/null || true
        wait "$ssh" "$jupyter" || true
        exit 0
    fi
    kill -TERM -1 2>/dev/null || true
    while others; do
        sleep 0.1
    done
    exit 0
}

# Returns true if any process besides tini and this script lives. The runtime kills the remaining processes after its timeout.
others() {
    local process
    for process in /proc/[0-9]*; do
        case ${process#/proc/} in
            1 | "$$") ;;
            *) [[ -O $process ]] && return 0 ;;
        esac
    done
    return 1
}

trap leave TERM INT
status=0
wait -n "$ssh" "$jupyter" || status=$?
echo "workspace: one of its servers ended with status $status, so it ends" >&2
kill -TERM "$ssh" "$jupyter" 2>/dev/null || true
exit $((status ? status : 1))
