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
	audit, key, by := e.Kind == string(queue.EventAudit), "everything", ""
	if e.Kind == string(queue.EventSettingChanged) {
		key = e.Setting + " = " + strconv.Quote(e.Value)
	}
	if e.User != "" {
		by = "  " + termtext.OneLine("by "+e.User)
	}
	if e.UID != nil {
		by += fmt.Sprintf(" (uid %d)", *e.UID)
	}
	line := fmt.Sprintf("%6d  %s  %-9s", e.Seq, LocalTime(e.Time), e.Kind)
	for _, part := range []struct {
		shown bool
		text  string
	}{
		{e.ID != "" && !audit, e.ID}, // the target of an audit event contains the job's id
		{e.Schedule != "", e.Schedule},
		{e.OccurrenceAt != 0, LocalTime(e.OccurrenceAt)},
		{e.Count != 0, fmt.Sprint(e.Count)},
		{e.State != "", e.State},
		{e.Attempt != 0, fmt.Sprintf("attempt %d", e.Attempt)},
		{e.Percent != nil, EmptyIfNil(e.Percent) + " %"},
		{e.ExitCode != nil, "exit code " + EmptyIfNil(e.ExitCode)},
		{e.Signal != 0, queue.SignalText(e.Signal)},
		{e.Reason != "", e.Reason},
		{e.Setting != "", key},
		{audit, e.Verb + " " + e.Target},
	} {
		if part.shown {
			line += "  " + termtext.OneLine(part.text)
		}
	}
	line += by
	if e.Verb != "" && !audit {
		line += "  " + termtext.OneLine(e.Verb)
	}
	return line
}

// DescribeService describes the service that answers: its kind and its socket.
func DescribeService(serviceKind, socket string) string {
	if serviceKind == "own" {
		serviceKind = "personal (not the machine's)"
	}
	return serviceKind + ", socket " + socket
}
