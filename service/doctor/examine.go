// Package doctor finds problems that keep a queue from working well, and suggests how to solve them.
//
// Start with Examiner, which implements the method Doctor of control.API, and with HealthCheck, which finds
// the problems that "queuectl status" shows.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/parts"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// Examiner checks the queue and its environment for "queuectl doctor".
type Examiner struct {
	*HealthCheck
	SocketInherited func() bool // reports whether another process created the socket
}

// runnerReplyTimeout limits how long Examiner waits for a reply of a runner.
const runnerReplyTimeout = 2 * time.Second

// Doctor implements control.API.
func (x *Examiner) Doctor(ctx context.Context, p control.Doctor, reportProgress func(control.Progress) error) (
	control.Diagnosis, error) {
	var findings []store.Finding
	if known, can := x.Store.(store.Examiner); can {
		findings = known.Examine(ctx)
	}
	if x.Maintainer == nil { // for a store in files, Examine has already checked the state directory
		findings = append(findings, x.ExamineStoreDir(x.Paths.StateDir)...)
	}
	mode, _ := x.Settings.Current().SocketPermissions()
	if x.SocketInherited() {
		mode = 0o777 // the systemd socket unit determines the mode, so allow any
	}
	findings = slices.Concat(findings, ExaminePaths(x.Paths, mode), x.ExamineAccess(),
		ExamineStoreFile(x.Settings.Current().StoreFile), x.ExamineOwners(ctx), x.examineUsers(), x.examinePrograms(),
		x.examineRunners(), x.examineLauncher(), x.examineEnforcement(ctx), examineResourceLimits(x.Settings.Current()),
		x.examineInheritedLimits(), x.ExamineBoot())
	if problems, failing := x.Problems(ctx); len(problems) > 0 {
		level := store.LevelWarning
		if failing {
			level = store.LevelFailure
		}
		findings = append(findings, store.Finding{Check: "work", Level: level, Message: strings.Join(problems, "; "),
			Advice: "see: queuectl status"})
	}
	if p.Verify && x.Maintainer == nil {
		return control.Diagnosis{}, ErrNoFiles
	}
	// If the disk is slow, jobs are already delayed, and a check of all data would add load.
	if p.Verify && x.Maintainer.SlowCommitError() == nil {
		var lastReport time.Time
		found, err := x.Maintainer.Verify(ctx, x.OutputFiles.OutputDirs(), func(done, total int64) error {
			if time.Since(lastReport) < ProgressInterval {
				return nil
			}
			lastReport = time.Now()
			return reportProgress(control.Progress{DoneBytes: done, Total: total})
		})
		var e *queue.Error
		if errors.As(err, &e) && (e.Code == queue.CodeNoSpace || e.Code == queue.CodeUnavailable) {
			found, err = []store.Finding{{Check: "integrity", Level: store.LevelWarning, Message: "the queue was not checked: " +
				strings.TrimSuffix(e.Message, "; try again later"), Advice: "check it later: queuectl doctor --verify"}}, nil
		}
		if err != nil {
			return control.Diagnosis{}, err
		}
		findings = append(findings, found...)
	}
	return Diagnose(findings), nil
}

// Diagnose summarizes findings. A finding that several checks have returned is listed once.
func Diagnose(findings []store.Finding) control.Diagnosis {
	d := control.Diagnosis{Level: string(store.LevelOK)}
	for i, f := range findings {
		if slices.Contains(findings[:i], f) {
			continue // for example, both the quick and the thorough check have found it
		}
		if f.Level == store.LevelFailure || f.Level == store.LevelWarning && d.Level == string(store.LevelOK) {
			d.Level = string(f.Level)
		}
		d.Findings = append(d.Findings, control.Finding{Check: f.Check, Level: string(f.Level), Message: f.Message,
			Advice: f.Advice})
	}
	return d
}

// ExamineAccess returns a finding if the settings section [access] contains unknown names.
func (x *Examiner) ExamineAccess() []store.Finding {
	if unknown := x.Rights.UnknownNamesMessage(); unknown != "" {
		return []store.Finding{{Check: "access", Level: store.LevelWarning, Message: unknown,
			Advice: "create them (" + createAccountCommands + ") or remove them from [access], then run: queuectl reload"}}
	}
	return nil
}

// examineInheritedLimits returns a finding for each restriction that the service has inherited from the
// process that started it.
func (x *Examiner) examineInheritedLimits() (findings []store.Finding) {
	for _, attribute := range x.InheritedRestrictions {
		findings = append(findings, store.Finding{
			Check: "start", Level: store.LevelWarning,
			Message: attribute + "; the service inherited this from the process that started it",
			Advice: "restart the service and its runners from a login session (queuectl service stop; queuectl service stop " +
				"--runners; queuectl service start), which ends running jobs, or install the service: queuectl service install",
		})
	}
	return findings
}

// ExamineStoreFile returns a finding if other accounts can read the file with the database URL, which may
// contain a password.
func ExamineStoreFile(path string) []store.Finding {
	info, err := os.Stat(path)
	if err != nil || runtime.GOOS == "windows" || info.Mode().Perm()&0o004 == 0 {
		// On Windows, only the directory's access rights protect the file.
		return nil
	}
	return []store.Finding{{Check: "store", Level: store.LevelWarning,
		Message: path + " contains the database URL and can be read by all users", Advice: "chmod o-r " + path}}
}

// examinePrograms reports program files that have changed since the service started.
func (x *Examiner) examinePrograms() (list []store.Finding) {
	for _, p := range x.Programs {
		now, err := os.Stat(p.Path)
		switch {
		case err != nil:
			list = append(list, store.Finding{Check: "program", Level: store.LevelFailure,
				Message: fmt.Sprintf("the file of a running program is missing: %v", err),
				Advice:  "install queuectl again; this file is needed to start the service and its runners"})
		case !os.SameFile(now, p.Info) || !now.ModTime().Equal(p.Info.ModTime()):
			list = append(list, store.Finding{Check: "program", Level: store.LevelFailure,
				Message: fmt.Sprintf("the file %s has changed since the service (version %s) started", p.Path, x.Version),
				Advice:  "restart the service (jobs keep running): queuectl service stop --keep-jobs, then queuectl service start"})
		}
	}
	if len(list) == 0 {
		list = append(list, store.Finding{Check: "program", Level: store.LevelOK,
			Message: fmt.Sprintf("the running version and the installed version are both %s", x.Version)})
	}
	return list
}

// describeEnforcement describes how jobs are limited on this machine in their output, run time and processes.
// hasCgroups means that control groups enforce limits.
func (x *Examiner) describeEnforcement(hasCgroups bool) string {
	if hasCgroups {
		return enforcementWithCgroupsText
	}
	if x.RunnerLocation.SpawnSocket != "" && x.SystemdUnit != "" {
		return "the runner enforces timeouts and output limits; it ends process trees with control groups, unless its log " +
			"says that they are not available: journalctl -u 'queuectl-runner@*'"
	}
	return enforcementText
}

// EndRunnerAdvice returns advice on how to end a runner that hangs. pid is the runner's pid, or 0 if it is
// unknown.
func EndRunnerAdvice(pid int64) string {
	if pid == 0 {
		return findHungRunnerAdvice
	}
	return fmt.Sprintf(endHungRunnerAdvice, pid)
}

// examineRunners returns findings about the runners that do not reply within runnerReplyTimeout.
func (x *Examiner) examineRunners() []store.Finding {
	live, unresponsive := x.Pool.CheckRunners(runnerReplyTimeout)
	var findings []store.Finding
	for _, pid := range unresponsive {
		findings = append(findings, store.Finding{Check: "runner", Level: store.LevelFailure,
			Message: worker.RunnerText(pid) + " does not answer, so the state of its jobs is unknown",
			Advice:  EndRunnerAdvice(pid)})
	}
	if len(findings) == 0 {
		findings = append(findings, store.Finding{Check: "runner", Level: store.LevelOK,
			Message: fmt.Sprintf("runners that answer: %d; running jobs: %d", len(live), x.Pool.BusyWorkers())})
	}
	return findings
}

// ProgramFiles describes the program files of the service and of its runner. It omits missing files.
func ProgramFiles(runner string) (files []parts.ProgramFile) {
	self, _ := os.Executable()
	for _, path := range []string{self, runner} {
		if info, err := os.Stat(path); err == nil {
			files = append(files, parts.ProgramFile{Path: path, Info: info})
		}
	}
	return files
}

// ErrNoFiles is the error if an operation needs the store's files, but the queue is stored in PostgreSQL.
var ErrNoFiles = queue.Errorf(queue.CodeUnsupported,
	"this queue is stored in PostgreSQL and has no files to copy or check; use PostgreSQL's tools, such as pg_dump")

// ProgressInterval is the minimum interval between two progress messages.
const ProgressInterval = 100 * time.Millisecond

// maxFormerNames is the maximum number of former owners that a finding names.
const maxFormerNames = 20

// ExamineOwners returns a finding with the names of former accounts that have jobs: accounts that were
// deleted or have another uid now. To save time, it reads jobs only if former accounts exist.
func (x *Examiner) ExamineOwners(ctx context.Context) []store.Finding {
	former, names := x.Owners.FormerNames(), map[string]bool{}
	f := store.Filter{Limit: store.MaxPageRows}
	for more := true; more && len(former) > 0; more = f.BeforeSeq != 0 {
		var page store.RefPage
		err := x.UserLimits.RunInSlot(ctx, control.ClassManyJobs, func() (err error) {
			page, err = x.Store.ListRefs(ctx, f)
			return err
		})
		if err != nil {
			reason, _, _ := strings.Cut(err.Error(), ";")
			return []store.Finding{{Check: "owners", Level: store.LevelWarning,
				Message: "jobs of former accounts were not checked: " + reason, Advice: "check them later: queuectl doctor"}}
		}
		for _, ref := range page.Refs {
			if name, isFormer := former[ref.UID]; isFormer {
				names[name] = true
				delete(former, ref.UID)
			}
		}
		f.BeforeSeq = page.Next
	}
	if len(names) == 0 {
		return nil
	}
	list := slices.Sorted(maps.Keys(names))
	if more := len(list) - maxFormerNames; more > 0 {
		list = append(list[:maxFormerNames], fmt.Sprintf("and %d more", more))
	}
	return []store.Finding{{
		Check: "owners", Level: store.LevelWarning,
		Message: "these accounts were deleted or have another uid now, so only admins can see and change the jobs " +
			"that they enqueued: " + strings.Join(list, ", "),
		Advice: "these jobs are held; to list them: queuectl list --user NAME; to let another user run one: queuectl edit " +
			"ID '{\"user\":\"ANOTHER\"}', then queuectl release ID; to remove one: queuectl rm ID",
	}}
}

// examineUsers returns a finding for each user whose jobs have almost used up the user's quota of bytes.
func (x *Examiner) examineUsers() (findings []store.Finding) {
	most := x.Quota.MaxBytesPerUser()
	for _, u := range x.Quota.NearQuota() {
		findings = append(findings, store.Finding{Check: "users", Level: store.LevelWarning,
			Message: fmt.Sprintf("the jobs of %s use %d of %d bytes; once all bytes are used, new jobs are refused",
				x.Owners.UserName(u.UID), u.Bytes, most),
			Advice: "remove ended jobs (queuectl cleanup), or raise the setting max_bytes_per_user"})
	}
	return findings
}
