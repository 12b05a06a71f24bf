# The service by its own commands: the system service under the service manager, and a user's
# own service, which is started at logon. Sourced by packaging/test/wine.
scenario=wine-service

program='C:\Tools and more\queuectl.exe'
state=$c/ProgramData/queuectl
own=$c/users/$(id -un)/AppData/Local/queuectl
ping='127\.0\.0\.78' # marks the processes of a job that only waits
run_key='HKCU\Software\Microsoft\Windows\CurrentVersion\Run'

# --- helpers

# q writes to a file, because a reader of a pipe would also wait for the processes that it starts in the background.
q() { SECONDS_AT_MOST=${SECONDS_AT_MOST:-30} windows "$program" "$@" >"$work/said"; local code=$?; cat "$work/said"; return $code; }
job() { q show "$1" --json | jq -r "$2"; }
in_state() { same "$2" "$(job "$1" .state)"; }
manager_says() { says "STATE *: [0-9]* *$1" windows sc query queuectl; }
long() { q enqueue --id "$1" 'ping -n 90 127.0.0.78 >nul' && within 15 in_state "$1" processing && job "$1" .pid >"$work/before"; }
dies() { kill -9 $(processes "$1"); }
returned() { same 'processing 0 stopped' "$(job "$1" '"\(.state) \(.attempts) \([.history[] | select(.finished_at) | .reason] | unique | join(" "))"')" && refuses unharmed "$1"; }
unharmed() { same "processing $(cat "$work/before")" "$(job "$1" '"\(.state) \(.pid)"')"; }

mkdir "$c/Tools and more"
GOOS=windows GOARCH=amd64 CGO_ENABLED=0 go build -o "$c/Tools and more/" ./cmd/...
hold

# --- the system service

promise 'service install succeeds' q service install
promise 'the service manager has started the service' manager_says RUNNING
promise '... under its own account' says 'NT SERVICE.queuectl' windows reg query 'HKLM\System\CurrentControlSet\Services\queuectl' /v ObjectName
promise '... with time to stop its jobs before a shutdown' says 0x2bf20 windows reg query 'HKLM\System\CurrentControlSet\Services\queuectl' /v PreshutdownTimeout
promise 'service status says that the service is running' says '^running, pid' q service status
promise 'a second service install succeeds' q service install
promise 'the default settings file exists' grep -q access "$state/queuectl.toml"
promise 'jobs run as the service'"'"'s account' says '^fixed:' q config get run_as
promise 'jobs cannot run as the users who enqueue them' ends 2 'password' q config set run_as submitter
promise '... nor as other accounts' ends 2 'install --user' q config set run_as 'fixed:NT AUTHORITY\LocalService'
promise 'a job has the variables of Windows' says 'AppData.Local.Temp.*system32' q run 'echo %TEMP% %PATH%'
promise 'its runner is a separate program next to the service'"'"'s program' test -n "$(processes 'Tools and more.runner.queuectl-[0-9a-f]*\.exe')"
promise 'run returns the exit code of its job' ends 7 '' q run --max-retries 0 'exit 7'
promise 'a long job starts' long one
promise 'service restart succeeds' q service restart
promise 'the job is still the same process' unharmed one
promise 'service stop --keep-jobs succeeds' q service stop --keep-jobs
promise 'the service manager does not start the service again' manager_says STOPPED
# This test is not the first: while Wine's own services start, Wine may treat a program started by hand as a service.
promise 'serve --service in a prompt prints the command that starts the service' ends 2 'sc start queuectl' q serve --service
promise 'the job is still running' same 1 "$([ -n "$(processes "$ping")" ] && echo 1)"
promise 'service status prints the command that starts the service' ends 3 'sc start queuectl' q service status
promise 'service start succeeds' q service start
promise 'the service has taken over the running job' within 10 unharmed one
q config set stop_timeout 1s >/dev/null
promise 'service uninstall succeeds' q service uninstall
promise 'no process of the queue is left' within 5 no_process 'queuectld?\.exe|127\.0\.0\.78'
promise '... and no program of a runner' refuses test -e "$c/Tools and more/runner"
promise 'the service manager no longer has the service' refuses manager_says ''
promise '... nor does the event log' refuses windows reg query 'HKLM\System\CurrentControlSet\Services\EventLog\Application\queuectl'
promise 'a second service uninstall succeeds' q service uninstall
promise 'queue and settings are kept' test -s "$state/queuectl.db" -a -s "$state/queuectl.toml"
promise 'the service'"'"'s log has entries' grep -q 'ready on' "$state/service.log"

# --- a user's own service

promise "service install --user succeeds" q service install --user
q config set stop_timeout 1s >/dev/null
promise '... and the service is started at logon' says '"C:.Tools and more.queuectld.exe" serve --background' windows reg query "$run_key" /v queuectl
promise 'service status says that the service is running' says '^running, pid' q service status --user
promise 'doctor says that the service ends at logoff' says 'log off' q doctor
promise 'a job prints' says hello q run -- cmd /c echo hello
promise 'a long job starts' long two
promise 'service restart --user succeeds' q service restart --user
promise 'the job is still the same process' within 10 unharmed two
# In Wine, a new logon follows the end of a session.
promise 'the user logs off and on' windows wineboot.exe --end-session
promise 'the job is back in the queue and runs again, and no attempt counts' within 15 returned two
job two .pid >"$work/before"
promise 'the service is killed' dies 'queuectld\.exe'
promise 'the user logs off and on while only the runner is running' windows wineboot.exe --end-session
promise 'the job is back in the queue and runs again, and no attempt counts' within 15 returned two
promise 'service stop --user succeeds' q service stop --user
promise 'no process of the queue is left' within 5 no_process 'queuectld?\.exe|127\.0\.0\.78'
promise 'enqueue does not start the registered service' ends 3 'service start --user' q enqueue true
promise 'service uninstall --user succeeds' q service uninstall --user
promise '... and the service is not started at logon any more' refuses windows reg query "$run_key" /v queuectl
promise 'the queue is kept' test -s "$own/queuectl.db"
let_go
rm -rf "$own" "$state" "$c/Tools and more"
summary
