// Command pages generates documentation files from the program. With -check it fails if one of the
// files is out of date, and writes nothing.
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
		"docs/verbs.md": "# Command reference\n\nEvery command of `queuectl` with its flags and examples. " +
			"`queuectl COMMAND --help --all` prints the same in a terminal, and `queuectl man DIR` writes it as manual pages. " +
			"This page is generated from the program by `make pages`.\n\n" + printed("man", "--markdown"),
		"docs/schemas.json": printed("schema", "--json"),
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

// printed runs queuectld with these arguments and returns its output.
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

// written describes the forms of durations and times. A test of package cli checks that the program
// accepts all of them.
const written = `
## Durations

A duration is between 0 and ten years. On the command line, every flag with a DURATION accepts all of these forms, and so does ` + "`config set`" + `. JSON, the settings file and the protocol accept only the forms in the first two rows of this table. JSON also accepts a number of seconds.

| written | meaning |
|---|---|
| ` + "`90`, `1.5`" + ` | seconds |
| ` + "`500ms`, `90s`, `5m`, `1h30m`, `7d`, `2w`" + ` | with units |
| ` + "`5min`, `2 hours`, `10 minutes`, `1 day`, `an hour and 30 minutes`" + ` | in words |

## Times

On the command line, every flag with a TIME accepts all of these forms, in your time zone. If you leave out the day or the year, the time means its next occurrence. With ` + "`--since`" + ` and ` + "`--until`" + `, the time means its last occurrence, and a duration such as ` + "`2h`" + ` means 2 hours ago. JSON and the protocol accept only RFC 3339.

| written | meaning |
|---|---|
| ` + "`2026-03-01T15:04:05Z`, `2026-03-01T15:04:05+01:00`" + ` | RFC 3339 |
| ` + "`2026-03-01 15:04`, `2026-03-01T15:04:05`, `2026-03-01`" + ` | a date, with a time of day or at midnight |
| ` + "`2026-03-01T15:04:05+0100`, `15:04 UTC`, `0930 +02:00`" +
	` | a time in a time zone: UTC, GMT, Z or an offset from -12:00 to +14:00 |
| ` + "`11/30/2026`, `30.11.2026`, `11/30/26`, `26-11-30`" + ` | other dates of at(1) |
| ` + "`15:04`, `15:04:05`, `0930`, `3am`, `3:30 pm`, `noon`, `midnight`, `teatime`" +
	` | a time of day; teatime is 16:00 |
| ` + "`today`, `tomorrow`, `yesterday`, `friday`, `fri`" + ` | a day, at midnight |
| ` + "`next friday`, `last friday`" + ` | the nearest Friday after or before today |
| ` + "`Nov 30`, `30 November`, `Nov 30 2026`" + ` | a day of a month |
| ` + "`tonight`, `tonight 23:00`" + ` | today at 20:00, or today at the given time, which must be noon or later |
| ` + "`friday 18:00`, `friday at 18:00`, `3am tomorrow`, `noon Nov 30`, `2026-12-24 3pm`, `15:04 2026-12-24`" +
	` | a day and a time of day, in either order |
| ` + "`+2h`, `in 2 hours`, `now + 2 hours`, `4pm + 3 days`, `now + 1 month`, `in a year`" +
	` | a length of time after now, or after another time |
| ` + "`next week`, `next month`, `noon next week`, `last month`" +
	` | one week or month after now or another time, or before now |
| ` + "`now`, `2 hours ago`, `an hour ago`, `2 months ago`" + ` | now, or a length of time before it |

An hour alone (` + "`12`" + `) and a date without separators (` + "`122426`" +
	`) are rejected, because programs disagree about what they mean. One month after January 31 is March 3 (March 2 in a leap year), as in at(1) and date(1).

**Time zone.** Your time zone is the value of ` + "`TZ`" + `: a name (` + "`Europe/Berlin`" +
	`), the path of a zone file, or a POSIX time zone (` + "`JST-9`, `CET-1CEST,M3.5.0,M10.5.0/3`" +
	`). If a POSIX time zone has summer time but no rule for it, ` + "`M3.2.0,M11.1.0`" +
	` applies, as in the C libraries. Without ` + "`TZ`" + `, the time zone of ` + "`/etc/localtime`" +
	` applies. Time zone names also work on machines without zone files. Commands that read or print times reject an unknown time zone. Other commands, such as ` + "`cancel`" + ` and ` + "`progress`" + `, ignore it. On Windows, the time zone of the machine applies and ` + "`TZ`" + ` has no effect.

**Output.** A printed date and time has the abbreviation of its time zone, which differs between summer and winter. A time of day without a date is in your time zone. In a table, the column title contains the abbreviation (` + "`RUN_AT (CEST)`" + `) if all times in the column have the same abbreviation. Otherwise, the abbreviation is printed after each time in the column. JSON output uses UTC.

**Clock changes.** If a clock change skips a time, the first moment after the gap is meant. In New York, ` +
	"`2027-03-14 02:30`" + ` is 03:00. If the clock shows a time twice, the first occurrence is meant.

**Times in the past.** ` + "`enqueue`, `run`" + ` and ` + "`edit`" + ` reject an ` + "`--at`" + ` or ` +
	"`--expires-at`" + ` time that passed more than a minute ago, unless you add ` + "`--allow-past`" +
	`. JSON and the protocol accept such a time.
`

// reference returns the page of fields, settings, methods, states and errors.
func reference() string {
	var b strings.Builder
	b.WriteString("# Reference\n\nFields, durations and times, states, settings, methods and errors. Commands are " +
		"described in [verbs.md](verbs.md), the protocol in [protocol.md](protocol.md) and its JSON Schemas in " +
		"[schemas.json](schemas.json). This page is generated from the program by `make pages`.\n")
	b.WriteString("\n## Fields of a job\n\nThese are the names in JSON and in the protocol. The flag of a field has `-` " +
		"instead of `_`. The flag of a list or map has the singular and can be repeated: `--label team=web --label " +
		"tier=gold`.\n\n| field | value | meaning |\n|---|---|---|\n")
	kinds := []string{"text", "integer", "number", "[duration](#durations)", "[time](#times)", "size", "true or false",
		"list of texts", "map of texts", "list of exit codes"}
	for _, f := range queue.Fields() {
		name := "`" + f.Name + "`"
		if f.Alias != "" {
			name += " (`" + f.Alias + "`)"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, kinds[f.Kind], f.Usage())
	}
	b.WriteString(written)
	b.WriteString("\n## States\n\n| state | possible next states |\n|---|---|\n")
	for _, from := range append([]queue.State{0}, queue.States()...) {
		var to []string
		for _, s := range queue.States() {
			if from.CanBecome(s) {
				to = append(to, s.String())
			}
		}
		name := from.String()
		if from == 0 {
			name = "(new)"
		}
		fmt.Fprintf(&b, "| %s | %s |\n", name, strings.Join(to, ", "))
	}
	b.WriteString("\n## Settings\n\nA change applies immediately, unless the description says otherwise. In the " +
		"settings file, a setting whose name contains a dot belongs to a table: `web.listen` is `listen` in `[web]`.\n\n| " +
		"setting | default | meaning |\n|---|---|---|\n")
	for _, k := range config.Keys() {
		name := "`" + k.Name + "`"
		for _, other := range k.Spellings() {
			name += " (`" + other + "`)"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, k.Default, k.Doc())
	}
	b.WriteString("\n## Protocol methods\n\nEach method needs a [right](users.md). Some methods need a stronger right " +
		"for the jobs of other users.\n\n| method | right | right for other users' jobs | streams |\n|---|---|---|---|\n")
	for _, m := range control.Methods() {
		streams := ""
		if m.Stream {
			streams = "yes"
		}
		others := ""
		if m.OthersRight != m.Right {
			others = string(m.OthersRight)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, m.Right, others, streams)
	}
	b.WriteString("\n## Protocol limits\n\nThe [protocol](protocol.md#limits) describes what happens if a limit is " +
		"exceeded.\n\n| subject | limit |\n|---|---|\n")
	for _, l := range control.ProtocolLimits() {
		fmt.Fprintf(&b, "| %s | %s |\n", l.What, l.Limit)
	}
	b.WriteString("\n## Errors\n\n| `data.code` | number | exit code | retry |\n|---|---|---|---|\n")
	for _, r := range control.Failures {
		fmt.Fprintf(&b, "| `%s` | %d | %d | %s |\n", r.Code, r.Number, r.Exit, r.Retry)
	}
	return b.String()
}
