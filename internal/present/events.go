package present

import (
	"fmt"
	"strconv"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// EventLine formats an event as one line for people.
func EventLine(e *control.Event) string {
	audit, key, by := e.Kind == string(queue.EventAudit), "everything", ""
	if e.Kind == string(queue.EventSettingChanged) {
		key = e.SettingName + " = " + strconv.Quote(e.SettingValue)
	}
	if e.User != "" {
		by = "  " + termtext.OneLine("by "+e.User)
	}
	if e.UID != nil {
		by += fmt.Sprintf(" (uid %d)", *e.UID)
	}
	line := fmt.Sprintf("%6d  %s  %-9s", e.Seq, LocalTimeText(e.OccurredAt), e.Kind)
	for _, part := range []struct {
		shown bool
		text  string
	}{
		{e.JobID != "" && !audit, e.JobID}, // the target of an audit event contains the job's id
		{e.Schedule != "", e.Schedule},
		{e.OccurrenceAt != 0, LocalTimeText(e.OccurrenceAt)},
		{e.MissedStarts != 0, fmt.Sprint(e.MissedStarts)},
		{e.State != "", e.State},
		{e.Attempt != 0, fmt.Sprintf("attempt %d", e.Attempt)},
		{e.ProgressPercent != nil, EmptyIfNil(e.ProgressPercent) + " %"},
		{e.ExitCode != nil, "exit code " + EmptyIfNil(e.ExitCode)},
		{e.Signal != 0, queue.SignalText(e.Signal)},
		{e.Reason != "", e.Reason},
		{e.SettingName != "", key},
		{audit, e.AuditCommand + " " + e.CommandTarget},
	} {
		if part.shown {
			line += "  " + termtext.OneLine(part.text)
		}
	}
	line += by
	if e.AuditCommand != "" && !audit {
		line += "  " + termtext.OneLine(e.AuditCommand)
	}
	return line
}

// DescribeService describes the service that a client is connected to: its kind and its socket.
func DescribeService(serviceKind, socketPath string) string {
	if serviceKind == "own" {
		serviceKind = "personal (not the machine's)"
	}
	return serviceKind + ", socket " + socketPath
}
