package cli

import (
	"fmt"
	"os"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

// JobLog is a file with one line for each ended job, in the format of GNU parallel.
type JobLog struct {
	f   *os.File
	err error // the first write error
}

// OpenJobLog creates a log. If resume is set, it appends to an existing log. The name - means standard
// output. The file stays open until the process ends.
func OpenJobLog(name string, out *os.File, resume bool) (*JobLog, error) {
	l := &JobLog{f: out}
	if name != "-" {
		how := os.O_TRUNC
		if resume {
			how = os.O_APPEND
		}
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|how, 0o666)
		if err != nil {
			return nil, fault.Usagef("--joblog: cannot %v; choose a file that you can write to", err)
		}
		l.f = f
		if info, err := f.Stat(); err != nil || info.Size() > 0 {
			return l, err
		}
	}
	_, l.err = l.f.WriteString("Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n")
	return l, l.err
}

// Add writes the line of a job. seq is the job's position in the input, starting at 1. received is the
// number of bytes on standard output, the only bytes that GNU parallel counts.
func (l *JobLog) Add(seq int, j *control.Job, received int64) {
	if l.err != nil {
		return
	}
	code, sig := queue.ValueOr(j.ExitCode, 0), queue.ValueOr(j.Signal, 0)
	if j.State != queue.Completed.String() && code == 0 && sig == 0 {
		code = int64(jobExit(j))
	}
	start, took := float64(j.StartedAt)/1000, 0.0
	if j.StartedAt != 0 {
		took = max(0, float64(j.FinishedAt-j.StartedAt)/1000)
	}
	// The command is the last column, so its tabs and spaces cannot be mistaken for separators.
	command := strings.ReplaceAll(present.JobTitle(j), "\n", " ")
	_, l.err = fmt.Fprintf(l.f, "%d\t:\t%.3f\t%10.3f\t0\t%d\t%d\t%d\t%s\n", seq, start, took, received, code, sig, command)
}

// WriteError returns the first write error. It returns nil for a nil log.
func (l *JobLog) WriteError() error {
	if l == nil {
		return nil
	}
	return l.err
}
