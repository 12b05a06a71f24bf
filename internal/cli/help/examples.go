package help

import (
	"strings"

	"github.com/spf13/cobra"
)

// Example returns examples of a command, "" if its description contains them.
func Example(cmd *cobra.Command) string {
	return Examples()[commandName(cmd)]
}

// Examples returns the examples of the commands whose description contains none.
func Examples() map[string]string {
	all := map[string]string{}
	for block := range strings.SplitSeq(exampleText, "\n\n") {
		name, text, _ := strings.Cut(strings.TrimSuffix(block, "\n"), "\n")
		all[name] = text
	}
	return all
}

// exampleText contains the name of each command and the lines of its examples.
const exampleText = `progress
  queuectl progress 40 'epoch 4 of 10'     from inside a job

attach
  queuectl attach 17                     follow job 17, exit with its exit code

wait
  queuectl wait 17 18
  queuectl wait --batch pics --progress  show a progress bar and failures

edit
  queuectl edit 17 --priority 100
  queuectl edit 17 '{"timeout":"2h","labels":{"old":null}}'
  queuectl edit 17 --lock=               remove the job's lock
  queuectl edit 17                       open the job in $EDITOR

retry
  queuectl retry 17
  queuectl retry --failed --batch pics

cancel
  queuectl cancel 17
  queuectl cancel --label site=a --dry-run
  queuectl cancel --all

rm
  queuectl rm 17
  queuectl rm --state dead --older-than 30d

dequeue
  queuectl dequeue 17

status
  queuectl status --watch
  queuectl status --check                one line and an exit code, for monitors

top
  queuectl top                           press ? for the list of keys, q to quit

list
  queuectl list --failed
  queuectl list --since yesterday --until today
  queuectl list --batch pics --columns id,state,error

ps
  queuectl ps --watch

show
  queuectl show 17
  queuectl show --failed --json

logs
  queuectl logs -f 17
  queuectl logs 17 --attempt 1 --stderr
  queuectl logs -f --queue render
  queuectl logs --batch pics -n 5

events
  queuectl events -f
  queuectl events 17 --since '2 hours ago'

whoami
  queuectl whoami --json

dlq
  queuectl dlq list
  queuectl dlq retry --all

dlq list
  queuectl dlq list --since yesterday
  queuectl dlq list --columns id,error,command

dlq retry
  queuectl dlq retry 17
  queuectl dlq retry --all --timeout '2 hours'

dlq clear
  queuectl dlq clear --dry-run
  queuectl dlq clear --yes

worker
  queuectl worker scale 8
  queuectl worker list

worker start
  queuectl worker start                  add one worker
  queuectl worker start -c 4
  queuectl worker start --foreground     keep the worker until Ctrl-C

worker stop
  queuectl worker stop -c 2              remove 2; their jobs may finish
  queuectl worker stop --all --timeout '5 minutes'

worker scale
  queuectl worker scale 8
  queuectl worker scale 0                start no more jobs

worker list
  queuectl worker list --json

hold
  queuectl hold 17
  queuectl hold --batch pics

release
  queuectl release 17

pause
  queuectl pause 17                      continue with: queuectl resume 17
  queuectl pause --label site=a
  queuectl pause --all                   pause running jobs, start no others

resume
  queuectl resume 17
  queuectl resume --all

requeue
  queuectl requeue 17

kill
  queuectl kill -s USR1 17               send the signal USR1 to job 17

drain
  queuectl drain --wait
  queuectl drain --off

clear
  queuectl clear --dry-run
  queuectl clear --yes

cleanup
  queuectl cleanup --days 30 --keep 1000

queue
  queuectl queue set gpu --concurrency 1
  queuectl queue list

queue list
  queuectl queue list
  queuectl queue list --json

queue set
  queuectl queue set gpu --concurrency 1
  queuectl queue set nightly --weight 3 --default timeout=2h

queue pause
  queuectl queue pause render --for 2h --reason 'driver update'
  queuectl queue pause --all

queue resume
  queuectl queue resume render
  queuectl queue resume --all

queue rm
  queuectl queue rm render

stats
  queuectl stats --since yesterday
  queuectl stats -Q render --by hour
  queuectl stats --since 30d --by day --json

why
  queuectl why 17                        why job 17 is not running; what to do

simulate
  queuectl simulate --next 5             what 5 free workers would start

tree
  queuectl tree 17
  queuectl tree 17 --dot >jobs.dot

schedule
  queuectl schedule add nightly '0 3 * * *' -- make backup
  queuectl schedule list

schedule list
  queuectl schedule list --json

schedule show
  queuectl schedule show nightly

schedule rm
  queuectl schedule rm nightly

schedule pause
  queuectl schedule pause nightly

schedule resume
  queuectl schedule resume nightly

schedule run
  queuectl schedule run nightly

node
  queuectl node list
  queuectl node drain web1

node list
  queuectl node list --json

node drain
  queuectl node drain web1 --wait
  queuectl node drain web1 --off

node rm
  queuectl node rm web1

gate
  queuectl gate list
  queuectl gate set @db --lock 3

gate list
  queuectl gate list --json

gate set
  queuectl gate set @db --lock 3
  queuectl gate set @api --rate 10/m
  queuectl gate set @api --unset rate

web
  queuectl web start
  queuectl web open

web start
  queuectl web start                     at 127.0.0.1:7070
  queuectl web start --listen 127.0.0.1:8080

web stop
  queuectl web stop

web open
  queuectl web open                      print a sign-in link

metrics
  queuectl metrics
  queuectl metrics --textfile /var/lib/prometheus/node-exporter/queuectl.prom

mcp
  queuectl mcp --write                   enter this in your agent's settings

hook
  queuectl hook test on_dead

hook test
  queuectl hook test on_dead
  queuectl hook test ops                 test the webhook [webhooks.ops]

config
  queuectl config list
  queuectl config set max_retries 5

config get
  queuectl config get max_retries

config set
  queuectl config set max_retries 5
  queuectl config set retention_dead 90d

config unset
  queuectl config unset max_retries      use the settings file or the default

config list
  queuectl config list
  queuectl config list --json

config validate
  queuectl config validate               check your settings file
  queuectl config validate /etc/queuectl/queuectl.toml

service
  queuectl service install                start at boot, for all users
  queuectl service status

service install
  sudo queuectl service install          start at boot, for all users
  queuectl service install --user        only for you

service uninstall
  queuectl service uninstall --user      the queue is kept

service start
  queuectl service start
  queuectl service start --dir ./here    use a separate queue in ./here

service stop
  queuectl service stop
  queuectl service stop --keep-jobs      running jobs continue

service restart
  queuectl service restart

service status
  queuectl service status
  queuectl service status --user

serve
  queuectl serve --workers 4
  queuectl serve --dir ./here            use a separate queue in ./here

reload
  queuectl reload

doctor
  queuectl doctor
  queuectl doctor --verify               also check every row of the database

backup
  queuectl backup queue.bak

restore
  queuectl service stop && queuectl restore queue.bak

migrate
  queuectl migrate --to-file /etc/queuectl/store   to the URL in this file
  queuectl migrate --to sqlite                     back to the SQLite database

completion
  queuectl completion bash >~/.local/share/bash-completion/completions/queuectl

man
  queuectl man ~/.local/share/man/man1

schema
  queuectl schema enqueue                the schema of the method enqueue

version
  queuectl version --json

init
  queuectl init
`
