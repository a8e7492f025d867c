#!/bin/bash
# Runs a workspace's two servers under tini, as the workspace's user. Ends with them, and takes everything along when asked to.
#
#   /run/workspace   from the machine: jupyter.token, authorized_keys; made here at the first start: the SSH server's key
set -euo pipefail

readonly GIVEN=/run/workspace
readonly HOST_KEY=$GIVEN/ssh_host_ed25519_key

fail() {
    echo "workspace: $1" >&2
    exit 1
}

[[ -r $GIVEN/jupyter.token && -s $GIVEN/jupyter.token ]] \
    || fail "uid $(id -u) cannot read $GIVEN/jupyter.token: start it with \`lockstep workspace start\`, with an image built for that uid"

# One key for the life of the workspace, kept with it: a new one at each start would look like an attack to SSH clients.
[[ -s $HOST_KEY ]] || ssh-keygen -q -t ed25519 -N '' -C workspace -f "$HOST_KEY"

# What a login shall have of the container's environment: all but what belongs to a shell or a login.
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
# The token is in a file, so it is neither in the arguments nor in what `inspect` or the log shows.
JUPYTER_TOKEN_FILE=$GIVEN/jupyter.token python -m jupyterlab \
    --ServerApp.ip=0.0.0.0 --ServerApp.port=8888 --ServerApp.port_retries=0 --ServerApp.open_browser=False \
    --ServerApp.root_dir=/workspace &
jupyter=$!

# All that runs here is the workspace's user's: servers, kernels, logins and what they started. tini and this script are left. In the
# machine's process namespace (--pid=host) it would be all that the person runs there; then only the servers are asked.
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

# Whether anything but this script, its `sleep` and tini lives. What does not end is killed by the runtime when its patience ends.
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
