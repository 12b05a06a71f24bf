#!/usr/bin/env bash
# The queue on a PostgreSQL server, as described in docs/cluster.md: systemd reads a URL with a password, and a
# drop-in gives the service network access.
. "$(dirname "$0")/../lib/all.sh"

needs postgresql
package new
box_up
install_deb "$new_deb" >/dev/null 2>&1
people
within 5 answers >/dev/null

# Copy this machine's PostgreSQL, with the files that it needs, into the box.
pg=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
{
	find "${pg%/bin}" "/usr/share/postgresql/$(basename "${pg%/bin}")" /usr/share/postgresql-common /usr/share/zoneinfo/Etc /usr/share/zoneinfo/UTC -name locale -prune -o ! -type d ! -path '*/bitcode/*' ! -name 'llvmjit*' -print
	ldd "$pg/postgres" "$pg/initdb" "$pg/psql" | awk '$2 == "=>" && $3 ~ /^\// {print $3}'
} | sort -u | tar -C / -ch --files-from=- --ignore-failed-read 2>/dev/null | tar -C "$box_dir/root" -x --skip-old-files
box_sh "useradd --system --create-home --home-dir /var/lib/pg pg && setpriv --reuid=pg --regid=pg --clear-groups sh -ec '
	cd ~pg; $pg/initdb -D data -U pg -A scram-sha-256 --pwfile=/dev/stdin --no-sync <<-end >/dev/null
	of-the-server
	end
	printf \"host all all 127.0.0.1/32 scram-sha-256\nlocal all all peer\n\" >data/pg_hba.conf
	mkdir socket'"
server() { box_sh "systemd-run --quiet --unit=pg --uid=pg $pg/postgres -D /var/lib/pg/data -c listen_addresses=127.0.0.1 -c unix_socket_directories=/var/lib/pg/socket"; }
sql() { box setpriv --reuid=pg --regid=pg --clear-groups "$pg/psql" -h /var/lib/pg/socket -U pg -Atqc "$1" "${2:-postgres}"; }
server
within 10 sql 'SELECT 1' >/dev/null
sql "CREATE ROLE queuectl LOGIN PASSWORD 'of-the-queue'" && sql 'CREATE DATABASE queuectl OWNER queuectl'

box_sh 'install -m 600 -o queuectl /dev/null /etc/queuectl/store
	echo "postgres://queuectl:of-the-queue@127.0.0.1/queuectl" >/etc/queuectl/store
	install -D -m 644 /usr/share/doc/queuectl/examples/server.conf /etc/systemd/system/queuectl.service.d/server.conf
	systemctl daemon-reload
	systemctl restart queuectl.service'
within 10 answers >/dev/null
promise 'a job runs' same here "$(q alice run -- echo here)"
promise '... and is stored in the database' same 1 "$(sql "SELECT count(*) FROM queuectl.jobs" queuectl)"
promise 'doctor checks the server' says '127\.0\.0\.1|PostgreSQL' q root doctor
promise 'the environment of a job does not contain the URL' same '' "$(q alice run -- sh -c 'env | grep -i -e store -e credential -e of-the-queue')"
promise '... a job cannot read its file' refuses q alice run -- cat /etc/queuectl/store
promise '... nor the credential' refuses q alice run -- sh -c 'cat /run/credentials/queuectl.service/*'
promise 'no other user can read the URL from the process' same '' "$(as bob sh -c "tr '\\0' '\\n' </proc/$(main_pid)/environ 2>/dev/null | grep of-the-queue")"

q alice enqueue --id long --max-retries 0 --command 'until [ -e end ]; do sleep 0.05; done; echo through' >/dev/null
within 5 in_state processing long >/dev/null
pid=$(job long .pid)
before=$(main_pid)
box systemctl restart queuectl.service
promise 'the service is restarted' within 10 replaced "$before"
promise '... and the running job continues' same "processing $pid" "$(job long '"\(.state) \(.pid)"')"
box systemctl kill --signal=KILL pg.service
within 5 unit_is pg.service ActiveState failed >/dev/null || true
promise 'while the server is stopped, a client gets an error that says so' says 'unavailable|try again later' q alice enqueue true
box systemctl reset-failed pg.service 2>/dev/null || true
server
within 10 sql 'SELECT 1' >/dev/null
promise 'after the server was started, jobs run again' within 10 q bob run -- true
promise '... the earlier job is still the same process' same "processing $pid" "$(job long '"\(.state) \(.pid)"')"
box_sh 'touch /home/alice/end'
promise '... until it ends' within 10 in_state completed long
box_reboot
server
promise 'after a reboot, the queue still has its jobs' within 20 in_state completed long
summary
