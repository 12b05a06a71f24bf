package present

import (
	"fmt"
	"strconv"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// EventLine formats an event for people.
func EventLine(e *control.Event) string {
	line := fmt.Sprintf("%6d  %s  %-9s", e.Seq, Local(e.Time), e.Event)
	add := func(format string, args ...any) { line += fmt.Sprintf(format, args...) }
	text := func(text string) { add("  %s", termtext.OneLine(text)) }
	// The target of an audit event already contains the job's id.
	if e.ID != "" && e.Event != string(queue.EventAudit) {
		text(e.ID)
	}
	if e.Schedule != "" {
		text(e.Schedule)
	}
	if e.Instant != 0 {
		text(Local(e.Instant))
	}
	if e.Count != 0 {
		add("  %d", e.Count)
	}
	if e.State != "" {
		text(e.State)
	}
	if e.Attempt != 0 {
		add("  attempt %d", e.Attempt)
	}
	if e.Percent != nil {
		add("  %d %%", *e.Percent)
	}
	if e.ExitCode != nil {
		add("  exit code %d", *e.ExitCode)
	}
	if e.Signal != 0 {
		add("  %s", queue.SignalText(e.Signal))
	}
	if e.Reason != "" {
		text(e.Reason)
	}
	if e.Key != "" && e.Event != string(queue.EventSetting) {
		text("everything")
	} else if e.Key != "" {
		text(e.Key + " = " + strconv.Quote(e.Value))
	}
	if e.Event == string(queue.EventAudit) {
		text(e.Verb + " " + e.Target)
	}
	if e.User != "" {
		text("by " + e.User)
	}
	if e.UID != nil {
		add(" (uid %d)", *e.UID)
	}
	if e.Event != string(queue.EventAudit) && e.Verb != "" {
		text(e.Verb)
	}
	return line
}

// DescribeService describes the service that answers: its owner and its socket.
func DescribeService(service, socket string) string {
	if service == "own" {
		service = "personal (not the machine's)"
	}
	return service + ", socket " + socket
}
