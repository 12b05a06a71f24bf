package present

import (
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// ScheduleTimesText describes when a schedule's jobs start: its cron expression, its zone and its
// jitter.
func ScheduleTimesText(s *control.Schedule) string {
	text := s.Cron + " (" + s.TimeZone + ")"
	if s.Jitter != 0 {
		text += ", delayed by up to " + queue.FormatDuration(time.Duration(s.Jitter))
	}
	return text
}

// NextOccurrenceRows formats the next occurrences of a schedule.
func NextOccurrenceRows(d *control.ScheduleDetail) (rows [][2]string) {
	now := time.Now()
	for i, at := range d.NextStarts {
		when := queue.UnixMillis(at).Time()
		text, _ := FullTimeText(when, now)
		// FullTimeText omits the seconds of a time that is more than an hour away. Add the seconds here if they are not 0.
		if when.Second() != 0 && when.Sub(now) > time.Hour {
			text = when.In(now.Location()).Format("Mon 2 Jan 15:04:05 MST") + ", in " + RoughDurationText(when.Sub(now))
		}
		rows = append(rows, [2]string{chooseText(i == 0, "Next", "Then"), text})
	}
	if len(rows) == 0 {
		rows = [][2]string{{"Next", ScheduleStateText(&d.Schedule)}}
	}
	return rows
}

// ScheduleStateText returns the state of a schedule.
func ScheduleStateText(s *control.Schedule) string {
	switch {
	case s.Paused && s.PauseReason != "":
		return "paused: " + s.PauseReason
	case s.Paused && s.PausedBy != nil:
		return "paused by " + *s.PausedBy
	case s.Paused:
		return "paused"
	case s.NextAt == 0 && strings.TrimSpace(s.Cron) == "@reboot":
		return "waiting for the next boot"
	}
	return "active"
}

// NoSchedulesText is the text for an empty list of schedules.
const NoSchedulesText = "no schedules; add one with: queuectl schedule add NAME 'CRON' -- program args"

// ScheduleHeadings returns the headings of the list of schedules. NEXT is followed by HeadingZonePlaceholder, which
// termtext.MoveZonesToHeadings replaces by the time zone.
func ScheduleHeadings() []string {
	return []string{"NAME", "CRON", "ZONE", "NEXT" + termtext.HeadingZonePlaceholder, "STATE", "USER", "COMMAND"}
}

// ScheduleRow returns the row of a schedule in the list of schedules.
func ScheduleRow(s *control.Schedule) []string {
	return []string{s.Name, s.Cron, s.TimeZone, LocalTimeText(s.NextAt), ScheduleStateText(s), s.User, ScheduleJobTitle(s)}
}

// ScheduleJobTitle returns the command of a schedule's jobs.
func ScheduleJobTitle(s *control.Schedule) string {
	return JobTitle(&control.Job{Command: s.Command})
}
