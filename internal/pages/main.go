// Command pages writes the files that are generated from the tables. With -check
// it fails when one is out of step instead.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

func main() {
	check := flag.Bool("check", false, "fail if a file is out of date")
	flag.Parse()
	wrong := false
	for path, text := range map[string]string{
		"queuectl.toml.example": config.Example(),
		"docs/reference.md":     reference(),
		"docs/verbs.md":         "# Verbs\n\nThis page is generated from the program's table of verbs by `make pages`; `queuectl man DIR` writes the same as manual pages, and `queuectl VERB --help` prints it.\n\n" + printed("man", "--markdown"),
		"docs/schemas.json":     printed("schema", "--json"),
	} {
		old, err := os.ReadFile(path)
		if err == nil && string(old) == text {
			continue
		}
		if *check {
			fmt.Fprintf(os.Stderr, "%s is out of date; run: make pages\n", path)
			wrong = true
			continue
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, err)
			wrong = true
		}
	}
	if inStep, err := writePicture(*check); !inStep {
		fmt.Fprintln(os.Stderr, err)
		wrong = true
	}
	if wrong {
		os.Exit(1)
	}
}

// printed is what the program prints.
func printed(args ...string) string {
	cmd := exec.Command("go", append([]string{"run", "./cmd/queuectld"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return string(out)
}

// written is how people write durations and times; a test of package cli holds it to what is read.
const written = `
## Durations

Durations range from 0 to ten years. JSON, settings and the wire accept the first two rows, and JSON also a number of seconds. The command line accepts all rows, at every flag that takes a DURATION and with ` + "`config set`" + `.

| written | meaning |
|---|---|
| ` + "`90`, `1.5`" + ` | seconds |
| ` + "`500ms`, `90s`, `5m`, `1h30m`, `7d`, `2w`" + ` | with units |
| ` + "`5min`, `2 hours`, `10 minutes`, `1 day`, `an hour and 30 minutes`" + ` | in words |

## Times

JSON and the wire accept only RFC 3339. The command line accepts all of these, in your time zone, at every flag that takes a TIME. If the day or the year is missing, the next one is meant; with ` + "`--since`" + ` and ` + "`--until`" + ` it is the last one. With ` + "`--since`" + `, a duration means that long ago.

| written | meaning |
|---|---|
| ` + "`2026-03-01T15:04:05Z`, `2026-03-01T15:04:05+01:00`" + ` | RFC 3339 |
| ` + "`2026-03-01 15:04`, `2026-03-01T15:04:05`, `2026-03-01`" + ` | a date, with a time of day or at midnight |
| ` + "`2026-03-01T15:04:05+0100`, `15:04 UTC`, `0930 +02:00`" + ` | a time in a zone: UTC, GMT, Z or an offset from -12:00 to +14:00 |
| ` + "`11/30/2026`, `30.11.2026`, `11/30/26`, `26-11-30`" + ` | other dates of at(1) |
| ` + "`15:04`, `15:04:05`, `0930`, `3am`, `3:30 pm`, `noon`, `midnight`, `teatime`" + ` | a time of day; teatime is 16:00 |
| ` + "`today`, `tomorrow`, `yesterday`, `friday`, `fri`" + ` | a day, at midnight |
| ` + "`next friday`, `last friday`" + ` | the nearest one after or before today |
| ` + "`Nov 30`, `30 November`, `Nov 30 2026`" + ` | a day of a month |
| ` + "`tonight`, `tonight 23:00`" + ` | this evening at 20:00, or at the given time from noon on |
| ` + "`friday 18:00`, `friday at 18:00`, `3am tomorrow`, `noon Nov 30`, `2026-12-24 3pm`, `15:04 2026-12-24`" + ` | a day and a time of day, in either order |
| ` + "`+2h`, `in 2 hours`, `now + 2 hours`, `4pm + 3 days`, `now + 1 month`, `in a year`" + ` | a length of time after now, or after another time |
| ` + "`next week`, `next month`, `noon next week`, `last month`" + ` | one week or month after now or another time, or before now |
| ` + "`now`, `2 hours ago`, `an hour ago`, `2 months ago`" + ` | now, or a length of time before it |

An hour alone (` + "`12`" + `) and a date without separators (` + "`122426`" + `) are refused, because programs disagree about what they mean. A month after January 31 is March 3 (March 2 in a leap year), as in at(1) and date(1).

Your time zone is that of ` + "`TZ`" + `: a name (` + "`Europe/Berlin`" + `), the path of a zone file, or a POSIX zone (` + "`JST-9`, `CET-1CEST,M3.5.0,M10.5.0/3`" + `). If a POSIX zone has summer time but no rule for it, the rule is ` + "`M3.2.0,M11.1.0`" + `, as in the C libraries. Without ` + "`TZ`" + ` the zone is that of ` + "`/etc/localtime`" + `. Commands that read or print times refuse an unknown zone; other commands, such as ` + "`cancel`" + ` and ` + "`progress`" + `, work. Zone names also work on machines without zone files. On Windows the zone is that of the machine, and ` + "`TZ`" + ` has no effect.

Times that are printed for people include the abbreviation of their zone, which differs between summer and winter. In a table it is in the column heading (` + "`RUN_AT (CEST)`" + `) if all times in the column share it, and otherwise next to each time. JSON uses UTC.

If a clock change skips a time, the first instant after the gap is meant; if the clock shows a time twice, the first of the two. In New York, ` + "`2027-03-14 02:30`" + ` is 03:00.

` + "`enqueue`, `run`" + ` and ` + "`edit`" + ` refuse an ` + "`--at`" + ` that is more than a minute in the past, unless ` + "`--allow-past`" + ` is given. JSON and the wire accept it.
`

// reference is the page of fields, settings, methods, states and failures.
func reference() string {
	var b strings.Builder
	b.WriteString("# Reference\n\nThis page is generated from the program's tables by `make pages`. Verbs stand in [verbs.md](verbs.md), the protocol in [protocol.md](protocol.md), its JSON Schemas in [schemas.json](schemas.json).\n")
	b.WriteString("\n## Fields of a job\n\nIn JSON and on the wire; as a flag write `-` for `_`, and repeat maps and lists in the singular (`--label k=v`).\n\n| field | flag takes | meaning |\n|---|---|---|\n")
	kinds := []string{"text", "integer", "number", "[duration](#durations)", "[time](#times)", "size", "true or false", "text, repeated", "NAME=value, repeated", "codes"}
	for _, f := range queue.Fields() {
		name := "`" + f.Name + "`"
		if f.Alias != "" {
			name += " (`" + f.Alias + "`)"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, kinds[f.Kind], f.Usage)
	}
	b.WriteString(written)
	b.WriteString("\n## States\n\n| from | may become |\n|---|---|\n")
	for _, from := range append([]queue.State{0}, queue.States()...) {
		var to []string
		for _, s := range queue.States() {
			if from.May(s) {
				to = append(to, s.String())
			}
		}
		name := from.String()
		if from == 0 {
			name = "(new)"
		}
		fmt.Fprintf(&b, "| %s | %s |\n", name, strings.Join(to, ", "))
	}
	b.WriteString("\n## Settings\n\nA change holds at once, where it does not say otherwise. Those with a dot stand in a table of the file.\n\n| key | default | meaning |\n|---|---|---|\n")
	for _, k := range config.Keys() {
		name := "`" + k.Name + "`"
		for _, other := range k.Spellings() {
			name += " (`" + other + "`)"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, k.Default, k.Doc)
	}
	b.WriteString("\n## Methods of the protocol\n\nEach needs a right, and some a stronger one where they are about another user's job; see [users.md](users.md).\n\n| method | right | of another's job | streams |\n|---|---|---|---|\n")
	for _, m := range control.Methods() {
		streams := ""
		if m.Stream {
			streams = "yes"
		}
		others := ""
		if m.Others != m.Right {
			others = string(m.Others)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, m.Right, others, streams)
	}
	b.WriteString("\n## Limits of the protocol\n\nWhat happens beyond them, [the protocol](protocol.md#limits) says.\n\n| of what | limit |\n|---|---|\n")
	for _, l := range control.ProtocolLimits() {
		fmt.Fprintf(&b, "| %s | %s |\n", l.What, l.Limit)
	}
	b.WriteString("\n## Failures\n\n| `data.code` | number | exit code | retry |\n|---|---|---|---|\n")
	for _, r := range control.Failures {
		fmt.Fprintf(&b, "| `%s` | %d | %d | %s |\n", r.Code, r.Number, r.Exit, r.Retry)
	}
	return b.String()
}
