# The MSI from the first installation to its removal; jobs are running during most of the
# test. packaging/test/windows.ps1 does the same on a real Windows. Sourced by
# packaging/test/wine.
scenario=wine-install
old=0.9.1
new=0.9.2

program='C:\Program Files\queuectl\queuectl.exe'
jobs='C:\users\Public\jobs'
state=$c/ProgramData/queuectl
service_is='queuectld\.exe"? serve --service'
environment='HKLM\System\CurrentControlSet\Control\Session Manager\Environment'
event_source='HKLM\System\CurrentControlSet\Services\EventLog\Application\queuectl'
ping='127\.0\.0\.77' # marks the processes of a job that only waits

# --- helpers

q() { SECONDS_AT_MOST=${SECONDS_AT_MOST:-30} windows "$program" "$@"; }
job() { q show "$1" --json | jq -r "$2"; }
job_is() { same "$3" "$(job "$1" "$2")"; }
in_state() { job_is "$1" .state "$2"; }
# Wine loses the first client of a pipe, which then waits forever, so the client has a time limit.
answers() { SECONDS_AT_MOST=4 q status; }
service_pid() { processes "$service_is" | head -n 1; }
manager_says() { says "STATE *: [0-9]* *$1" windows sc query queuectl; }
value() { windows reg query "$1" /v "$2"; }
install() { windows msiexec /i "C:\\$1.msi" /qn; }
version_is() { says "$1" q version && says "$1" q status --json; }
up() { within 30 answers && [ -n "$(service_pid)" ]; }

# long ID CODE starts a job that runs until end_job and then exits with the code.
long() {
	rm -f "$c/users/Public/jobs/end-$1"
	q enqueue --id "$1" --max-retries 0 "$jobs\\long.cmd $1 $2" && within 15 in_state "$1" processing
}
end_job() { touch "$c/users/Public/jobs/end-$1"; }
began() { grep -c . "$c/users/Public/jobs/began-$1"; }
# unharmed ID succeeds if the job has started once and is still the process that note_job recorded.
note_job() { before=$(job "$1" .pid) before_here=$(processes "long\.cmd $1"); }
unharmed() {
	job_is "$1" '"\(.state) \(.pid)"' "processing $before" && same "$before_here" "$(processes "long\.cmd $1")" && same 1 "$(began "$1")"
}
# whole ID CODE succeeds if the job has ended with the code, in one attempt, with its complete output.
whole() {
	within 20 in_state "$1" dead && job_is "$1" '"\(.exit_code) \(.attempts) \(.history | length)"' "$2 1 1" &&
		says "begun $1" q logs "$1" && says "ended $1" q logs "$1"
}

# --- packages

packages() {
	local version
	for version in $old $new; do
		FORMATS=msi ARCHES=amd64 VERSION=$version DIST=$work/$version packaging/build || return 1
	done
	cp "$work/$old/queuectl_${old}_amd64.msi" "$c/old.msi" && cp "$work/$new/queuectl_${new}_amd64.msi" "$c/new.msi" || return 1
	# Windows sets UPGRADINGPRODUCTCODE when it removes a product for an upgrade. Wine 8 does not, so
	# set it in the column that Wine reads as the list of features to remove.
	msibuild "$c/new.msi" -q "UPDATE Upgrade SET Remove = 'ALL UPGRADINGPRODUCTCODE={$(msiinfo export "$c/new.msi" Property | tr -d '\r' | sed -n 's/^ProductCode\t{\(.*\)}/\1/p')}' WHERE ActionProperty = 'WIX_UPGRADE_DETECTED'"
}
promise 'two versions are built' packages
mkdir "$c/users/Public/jobs"
printf '%s\r\n' '@echo off' 'cd /d %~dp0' 'echo x>>began-%1' 'echo begun %1' ':again' 'if exist end-%1 goto end' \
	'ping -n 2 127.0.0.1 >nul' 'goto again' ':end' 'echo ended %1' 'exit %2' >"$c/users/Public/jobs/long.cmd"
hold

# --- installed

users=$(ls "$c/users")
promise 'the MSI installs silently' install old
promise 'the service manager has started the service' manager_says RUNNING
promise 'the service answers on the pipe' up
[ "$failed" = 0 ] || { summary; exit 1; }
promise 'the old version is installed' version_is $old
promise 'the program is found by its name' says "queuectl $old" windows cmd /c 'queuectl version'
promise 'the service starts at boot' says '0x2' value 'HKLM\System\CurrentControlSet\Services\queuectl' Start
promise '... under its own account' says 'NT SERVICE.queuectl' value 'HKLM\System\CurrentControlSet\Services\queuectl' ObjectName
promise 'the event log has a source for the service' windows reg query "$event_source"
promise 'the queue is below ProgramData' test -s "$state/queuectl.db"
echo '# by hand' >>"$state/queuectl.toml"

# --- jobs

promise 'a job prints' same hello "$(q run -- cmd /c echo hello)"
promise 'a command line is run by cmd.exe' says 'one.*' q run 'echo one& echo two'
runners() { find "$c/Program Files/queuectl/runner" -name 'queuectl-*.exe' | wc -l; }
promise 'its runner is a separate program in Program Files' test -n "$(processes 'Program Files.queuectl.runner.queuectl-[0-9a-f]*\.exe')"
no_copies() { same '' "$(find "$state" -name '*.exe')"; }
promise '... and no program is below ProgramData' no_copies
promise 'run returns the exit code of its job' ends 7 '' q run --max-retries 0 'exit 7'
code_32() {
	q enqueue --id code --max-retries 0 'exit -1073741819' && within 10 in_state code dead && job_is code .exit_code 3221225477
}
promise 'an exit code has 32 bits' code_32
failing() {
	q enqueue --id failing --max-retries 2 --backoff-base 0.1 'echo again& exit 3' && within 20 in_state failing dead &&
		job_is failing '"\(.exit_code) \(.attempts) \(.history | length)"' '3 3 3' && says failing q dlq list -q
}
promise 'a failing job is retried, and dead at the end' failing
tree() {
	q enqueue --id tree --max-retries 0 --kill-after 1s --timeout 6 'cmd /c cmd /c ping -n 60 127.0.0.77' &&
		within 6 three_processes && within 20 in_state tree dead && job_is tree '.reason' timed_out && within 2 no_process "$ping"
}
three_processes() { [ "$(processes "$ping" | wc -l)" -ge 3 ]; }
promise 'a timeout ends all three processes of a job' tree
scaled() {
	q worker scale 3 && job_count 3 && q worker scale 2 && job_count 2
}
job_count() { same "$1" "$(q status --json | jq -r .workers.total)" && same "$1" "$(q worker list --json | jq -r length)"; }
promise 'worker scale changes the number of workers' scaled

# --- killed

promise 'a long job starts' long one 11
note_job one
promise '... and its processes are visible' test -n "$before_here"
killed=$(service_pid)
kill_service() { kill -KILL "$killed" && within 5 no_process "$service_is"; }
promise 'the service is killed' kill_service
# To Wine's service manager, the service is still running, but it starts the service anyway.
promise 'the service can be started again' windows net start queuectl
promise 'the service answers' up
promise 'the service has taken over the running job' within 10 unharmed one
end_job one
promise 'the job ends with its own exit code and output' whole one 11

# --- upgraded

promise 'another long job starts' long two 12
note_job two
promise '... and its processes are visible' test -n "$before_here"
promise 'the newer MSI installs while the job is running' install new
promise 'the service manager has started the service' manager_says RUNNING
promise 'the service answers' up
promise 'the new version is installed' version_is $new
promise 'the job is still the same process' within 10 unharmed two
promise 'changed settings are kept' grep -q 'by hand' "$state/queuectl.toml"
promise 'the program of the old runner exists next to the program of new runners' same 2 "$(runners)"
end_job two
promise 'the new service records the end of the job' whole two 12
promise 'earlier jobs are still in the queue' in_state failing dead
only_new() { same 1 "$(windows reg query 'HKLM\Software\Microsoft\Windows\CurrentVersion\Uninstall' /s | grep -c 'DisplayName.*queuectl')"; }
promise 'one version is installed' only_new
promise 'an older MSI is rejected' refuses install old
promise '... and the newer version stays' version_is $new

promise 'another long job starts' long repaired 15
note_job repaired
rm "$c/Program Files/queuectl/README.md"
promise 'a repair with the same MSI restores a deleted file' windows msiexec /i 'C:\new.msi' REINSTALL=ALL REINSTALLMODE=amus /qn # Wine 8 has no /f
promise '... and the file exists again' test -s "$c/Program Files/queuectl/README.md"
promise 'the service answers' up
promise 'the job is still the same process' within 10 unharmed repaired
promise 'changed settings are kept' grep -q 'by hand' "$state/queuectl.toml"
promise 'the program of the old runner is gone' same 1 "$(runners)"
end_job repaired
promise 'the job ends with its own exit code and output' whole repaired 15

# --- stopped

promise 'a job that ends soon starts' long three 13
(sleep 2 && end_job three) &
promise 'a stop of the service waits for the job' windows net stop queuectl
promise 'the service is stopped' within 10 manager_says STOPPED
promise 'no process of the queue is left' within 5 no_process 'queuectld?\.exe|long\.cmd'
promise 'the service starts again' windows net start queuectl
promise 'the service answers' up
promise 'the job ended with its own exit code and output' whole three 13

stop_timeout() { q config set stop_timeout 2s && long four 14; }
promise 'a job that does not end starts' stop_timeout
promise 'a stop of the service ends the job' windows net stop queuectl
promise '... with all of its processes' within 5 no_process 'queuectld?\.exe|long\.cmd'
promise 'the service starts again' windows net start queuectl
promise 'the service answers' up
began_twice() { same 2 "$(began four)"; }
returned() { within 20 in_state four processing && within 10 began_twice && job_is four .attempts 0; } # the job writes its file a moment after its start
promise 'the job is back in the queue and runs again' returned

# --- removed

promise 'the product can be removed while the job is running' windows msiexec /x 'C:\new.msi' /qn
promise 'no process of the queue is left' within 5 no_process 'queuectld?\.exe|long\.cmd'
promise 'the service manager no longer has the service' refuses manager_says ''
promise '... nor does the event log' refuses windows reg query "$event_source"
promise 'PATH no longer contains the program'"'"'s directory' refuses says 'queuectl' value "$environment" PATH
promise 'the program'"'"'s directory is gone' refuses test -e "$c/Program Files/queuectl"
promise 'the queue is kept' test -s "$state/queuectl.db"
promise 'settings are kept' grep -q 'by hand' "$state/queuectl.toml"
promise 'no program is left next to the queue' no_copies
promise 'no new user directory is left' same "$users" "$(ls "$c/users")"
let_go
# The installer keeps an entry with the path of each permanent file.
registry() { grep -Hni queuectl "$WINEPREFIX"/*.reg | grep -Ev '"0{32}"=".*queuectl\.toml"$'; }
promise 'the registry does not mention queuectl' same '' "$(registry)"
rm -f "$c"/{old,new}.msi
[ "$failed" = 0 ] || tail -n 40 "$state/service.log" | sed 's/^/     > /'
rm -rf "$state" # the next scenario starts without it
summary
