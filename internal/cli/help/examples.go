package help

import (
	"github.com/spf13/cobra"
)

// Examples returns examples of the commands whose description contains none.
func Examples() map[string]string {
	return map[string]string{
		"progress": "  queuectl progress 40 'epoch 4 of 10'     from inside a job",
		"attach":   "  queuectl attach 17                     follow job 17, exit with its exit code",
		"wait":     "  queuectl wait 17 18\n  queuectl wait --batch pics --progress  show a progress bar and failures",
		"edit":     "  queuectl edit 17 --priority 100\n  queuectl edit 17 '{\"timeout\":\"2h\",\"labels\":{\"old\":null}}'\n  queuectl edit 17 --lock=               remove the job's lock\n  queuectl edit 17                       open the job in $EDITOR",
		"retry":    "  queuectl retry 17\n  queuectl retry --failed --batch pics", "cancel": "  queuectl cancel 17\n  queuectl cancel --label site=a --dry-run\n  queuectl cancel --all",
		"rm": "  queuectl rm 17\n  queuectl rm --state dead --older-than 30d", "dequeue": "  queuectl dequeue 17",

		"status": "  queuectl status --watch\n  queuectl status --check                one line and an exit code, for monitors", "top": "  queuectl top                           press ? for the list of keys, q to quit", "list": "  queuectl list --failed\n  queuectl list --since yesterday --until today\n  queuectl list --batch pics --columns id,state,error",
		"ps": "  queuectl ps --watch", "show": "  queuectl show 17\n  queuectl show --failed --json", "logs": "  queuectl logs -f 17\n  queuectl logs 17 --attempt 1 --stderr\n  queuectl logs -f --queue render\n  queuectl logs --batch pics -n 5",
		"events": "  queuectl events -f\n  queuectl events 17 --since '2 hours ago'", "whoami": "  queuectl whoami --json",
		"dlq": "  queuectl dlq list\n  queuectl dlq retry --all", "dlq list": "  queuectl dlq list --since yesterday\n  queuectl dlq list --columns id,error,command",
		"dlq retry": "  queuectl dlq retry 17\n  queuectl dlq retry --all --timeout '2 hours'", "dlq clear": "  queuectl dlq clear --dry-run\n  queuectl dlq clear --yes",

		"worker": "  queuectl worker scale 8\n  queuectl worker list", "worker start": "  queuectl worker start                  add one worker\n  queuectl worker start -c 4\n  queuectl worker start --foreground     keep the worker until Ctrl-C",
		"worker stop": "  queuectl worker stop -c 2              remove 2; their jobs may finish\n  queuectl worker stop --all --timeout '5 minutes'", "worker scale": "  queuectl worker scale 8\n  queuectl worker scale 0                start no more jobs", "worker list": "  queuectl worker list --json",
		"hold": "  queuectl hold 17\n  queuectl hold --batch pics", "release": "  queuectl release 17",
		"pause": "  queuectl pause 17                      continue with: queuectl resume 17\n  queuectl pause --label site=a\n  queuectl pause --all                   pause running jobs, start no others", "resume": "  queuectl resume 17\n  queuectl resume --all", "requeue": "  queuectl requeue 17",
		"kill": "  queuectl kill -s USR1 17               send the signal USR1 to job 17", "drain": "  queuectl drain --wait\n  queuectl drain --off", "clear": "  queuectl clear --dry-run\n  queuectl clear --yes", "cleanup": "  queuectl cleanup --days 30 --keep 1000",

		"queue": "  queuectl queue set gpu --concurrency 1\n  queuectl queue list", "queue list": "  queuectl queue list\n  queuectl queue list --json",
		"queue set": "  queuectl queue set gpu --concurrency 1\n  queuectl queue set nightly --weight 3 --default timeout=2h", "queue pause": "  queuectl queue pause render --for 2h --reason 'driver update'\n  queuectl queue pause --all",
		"queue resume": "  queuectl queue resume render\n  queuectl queue resume --all", "queue rm": "  queuectl queue rm render",
		"stats": "  queuectl stats --since yesterday\n  queuectl stats -Q render --by hour\n  queuectl stats --since 30d --by day --json",
		"why":   "  queuectl why 17                        why job 17 is not running; what to do", "simulate": "  queuectl simulate --next 5             what 5 free workers would start", "tree": "  queuectl tree 17\n  queuectl tree 17 --dot >jobs.dot",
		"schedule": "  queuectl schedule add nightly '0 3 * * *' -- make backup\n  queuectl schedule list", "schedule list": "  queuectl schedule list --json", "schedule show": "  queuectl schedule show nightly",
		"schedule rm": "  queuectl schedule rm nightly", "schedule pause": "  queuectl schedule pause nightly", "schedule resume": "  queuectl schedule resume nightly", "schedule run": "  queuectl schedule run nightly",

		"node": "  queuectl node list\n  queuectl node drain web1", "node list": "  queuectl node list --json", "node drain": "  queuectl node drain web1 --wait\n  queuectl node drain web1 --off", "node rm": "  queuectl node rm web1", "gate": "  queuectl gate list\n  queuectl gate set @db --lock 3", "gate list": "  queuectl gate list --json", "gate set": "  queuectl gate set @db --lock 3\n  queuectl gate set @api --rate 10/m\n  queuectl gate set @api --unset rate",
		"web": "  queuectl web start\n  queuectl web open", "web start": "  queuectl web start                     at 127.0.0.1:7070\n  queuectl web start --listen 127.0.0.1:8080", "web stop": "  queuectl web stop", "web open": "  queuectl web open                      print a sign-in link",
		"metrics": "  queuectl metrics\n  queuectl metrics --textfile /var/lib/prometheus/node-exporter/queuectl.prom",
		"mcp":     "  queuectl mcp --write                   start command for your agent's settings",
		"hook":    "  queuectl hook test on_dead", "hook test": "  queuectl hook test on_dead\n  queuectl hook test ops                 test the webhook [webhooks.ops]",

		"config": "  queuectl config list\n  queuectl config set max_retries 5", "config get": "  queuectl config get max_retries", "config set": "  queuectl config set max_retries 5\n  queuectl config set retention_dead 90d",
		"config unset": "  queuectl config unset max_retries      use the settings file or the default", "config list": "  queuectl config list\n  queuectl config list --json", "config validate": "  queuectl config validate               check your settings file\n  queuectl config validate /etc/queuectl/queuectl.toml",
		"service": "  queuectl service install                start at boot, for all users\n  queuectl service status", "service install": "  sudo queuectl service install          start at boot, for all users\n  queuectl service install --user        only for you", "service uninstall": "  queuectl service uninstall --user      the queue is kept",
		"service start": "  queuectl service start\n  queuectl service start --dir ./here    use a separate queue in ./here", "service stop": "  queuectl service stop\n  queuectl service stop --keep-jobs      running jobs continue", "service restart": "  queuectl service restart", "service status": "  queuectl service status\n  queuectl service status --user",
		"serve": "  queuectl serve --workers 4\n  queuectl serve --dir ./here            use a separate queue in ./here", "reload": "  queuectl reload", "doctor": "  queuectl doctor\n  queuectl doctor --verify               also check every row of the database",
		"backup": "  queuectl backup queue.bak", "restore": "  queuectl service stop && queuectl restore queue.bak",
		"migrate": "  queuectl migrate --to-file /etc/queuectl/store\n  queuectl migrate --to sqlite           move the queue back to a file",

		"completion": "  queuectl completion bash >~/.local/share/bash-completion/completions/queuectl", "man": "  queuectl man ~/.local/share/man/man1",
		"schema": "  queuectl schema enqueue                the schema of the method enqueue", "version": "  queuectl version --json", "init": "  queuectl init",
	}
}

// Example returns examples of a command, "" if its description contains them.
func Example(cmd *cobra.Command) string {
	return Examples()[commandName(cmd)]
}
