# The service by its own verbs: the system's under the service manager, and a user's own,
# which is started at logon. Sourced by packaging/test/wine.
scenario=wine-service

program='C:\Tools and more\queuectl.exe'
state=$c/ProgramData/queuectl
own=$c/users/$(id -un)/AppData/Local/queuectl
ping='127\.0\.0\.78' # marks the processes of a job that only waits
run_key='HKCU\Software\Microsoft\Windows\CurrentVersion\Run'

# --- words

q() { SECONDS_AT_MOST=${SECONDS_AT_MOST:-30} windows "$program" "$@" >"$work/said"; local code=$?; cat "$work/said"; return $code; } # who reads a pipe would wait for what is started in the background too
job() { q show "$1" --json | jq -r "$2"; }
in_state() { same "$2" "$(job "$1" .state)"; }
manager_says() { says "STATE *: [0-9]* *$1" windows sc query queuectl; }
long() { q enqueue --id "$1" 'ping -n 90 127.0.0.78 >nul' && within 15 in_state "$1" processing && job "$1" .pid >"$work/before"; }
dies() { kill -9 $(processes "$1"); }
given_back() { same 'processing 0 stopped' "$(job "$1" '"\(.state) \(.attempts) \([.history[] | select(.finished_at) | .reason] | unique | join(" "))"')" && refuses unharmed "$1"; }
unharmed() { same "processing $(cat "$work/before")" "$(job "$1" '"\(.state) \(.pid)"')"; }

mkdir "$c/Tools and more"
GOOS=windows GOARCH=amd64 CGO_ENABLED=0 go build -o "$c/Tools and more/" ./cmd/...
hold

# --- the system's

promise 'it is installed' q service install
promise 'the service manager has started it' manager_says RUNNING
promise '... as an account of its own' says 'NT SERVICE.queuectl' windows reg query 'HKLM\System\CurrentControlSet\Services\queuectl' /v ObjectName
promise '... with time for its jobs before a shutdown' says 0x2bf20 windows reg query 'HKLM\System\CurrentControlSet\Services\queuectl' /v PreshutdownTimeout
promise 'it runs, and says so' says '^running, pid' q service status
promise 'to install it again changes nothing' q service install
promise 'first settings are there' grep -q access "$state/queuectl.toml"
promise 'jobs run as its account' says '^fixed:' q config get run_as
promise 'they cannot run as who hands them in' ends 2 'password' q config set run_as submitter
promise 'nor as others' ends 2 'install --user' q config set run_as 'fixed:NT AUTHORITY\LocalService'
promise 'a job has the variables of Windows' says 'AppData.Local.Temp.*system32' q run 'echo %TEMP% %PATH%'
promise 'its runner is a program of its own name beside it' test -n "$(processes 'Tools and more.runner.queuectl-[0-9a-f]*\.exe')"
promise 'an exit code passes' ends 7 '' q run --max-retries 0 'exit 7'
promise 'a long job begins' long one
promise 'the service is restarted' q service restart
promise 'the job has not noticed' unharmed one
promise 'the service is stopped, and its jobs are not' q service stop --keep-jobs
promise 'the service manager leaves it so' manager_says STOPPED
# Not at first: while Wine's own services start, a program by hand may be taken for one.
promise 'by hand it says what starts it' ends 2 'sc start queuectl' q serve --service
promise 'the job still runs' same 1 "$([ -n "$(processes "$ping")" ] && echo 1)"
promise 'it says what starts it' ends 3 'sc start queuectl' q service status
promise 'it is started' q service start
promise 'it has adopted the job' within 10 unharmed one
q config set stop_timeout 1s >/dev/null
promise 'it is uninstalled, and gives the job back' q service uninstall
promise 'no process is left' within 5 no_process 'queuectld?\.exe|127\.0\.0\.78'
promise 'no program of a runner is' refuses test -e "$c/Tools and more/runner"
promise 'the service manager does not know it' refuses manager_says ''
promise 'the event log does not' refuses windows reg query 'HKLM\System\CurrentControlSet\Services\EventLog\Application\queuectl'
promise 'to uninstall it again is no error' q service uninstall
promise 'queue and settings stay' test -s "$state/queuectl.db" -a -s "$state/queuectl.toml"
promise 'its log says what it did' grep -q 'ready on' "$state/service.log"

# --- a user's own

promise "a user's own is installed" q service install --user
q config set stop_timeout 1s >/dev/null
promise '... to be started at logon' says '"C:.Tools and more.queuectld.exe" serve --background' windows reg query "$run_key" /v queuectl
promise 'it runs, and says so' says '^running, pid' q service status --user
promise 'doctor says that it ends at logoff' says 'log off' q doctor
promise 'a job prints' says hello q run -- cmd /c echo hello
promise 'a long job begins' long two
promise 'it is restarted' q service restart --user
promise 'the job has not noticed' within 10 unharmed two
# To Wine a session that ends is followed by the next logon.
promise 'its user logs off and on' windows wineboot.exe --end-session
promise 'the job was given back, runs again, and no attempt counts' within 15 given_back two
job two .pid >"$work/before"
promise 'its service dies' dies 'queuectld\.exe'
promise 'its user logs off and on, of which the runner alone is told' windows wineboot.exe --end-session
promise 'the job was given back, runs again, and no attempt counts' within 15 given_back two
promise 'it is stopped, with its jobs' q service stop --user
promise 'no process is left' within 5 no_process 'queuectld?\.exe|127\.0\.0\.78'
promise 'it is not started by the way' ends 3 'service start --user' q enqueue true
promise 'it is uninstalled' q service uninstall --user
promise '... and started no more' refuses windows reg query "$run_key" /v queuectl
promise 'its queue stays' test -s "$own/queuectl.db"
let_go
rm -rf "$own" "$state" "$c/Tools and more"
summary
