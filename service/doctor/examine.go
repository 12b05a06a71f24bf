// Package doctor finds problems that keep a queue from working well, and suggests how to solve them.
//
// Start with Examiner. It implements the method RunDoctor of control.API, and finds the problems that "queuectl
// status" shows.
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

// Examiner checks the queue and its environment.
type Examiner struct{ *parts.Dependencies }

// runnerReplyTimeout limits how long Examiner waits for a reply of a runner.
const runnerReplyTimeout = 2 * time.Second

// RunDoctor implements control.API.
func (x *Examiner) RunDoctor(ctx context.Context, p control.DoctorParams,
	reportProgress func(control.DoctorProgress) error) (result control.Diagnosis, err error) {
	var findings []store.Finding
	if known, can := x.Store.(store.Examiner); can {
		findings = known.Examine(ctx)
	}
	if x.StoreMaintainer == nil { // for a store in files, the quick check of the store includes the state directory
		findings = append(findings, x.ExamineStateDir(x.Paths.StateDir)...)
	}
	mode, _ := x.Settings.CurrentConfig().SocketPermissions()
	if x.SocketInherited {
		mode = 0o777 // the systemd socket unit determines the mode, so accept any mode
	}
	findings = slices.Concat(findings, ExaminePathPermissions(x.Paths, mode), x.ExamineAccessSettings(),
		ExamineDatabaseURLFile(x.Settings.CurrentConfig().StoreFile), x.ExamineFormerOwners(ctx), x.examineUserQuotas(),
		x.examinePausedQueues(), x.examineChangedPrograms(),
		x.examineRunners(), x.examineLauncher(), x.examineLimitEnforcement(ctx),
		examineResourceLimits(x.Settings.CurrentConfig()), x.examineInheritedRestrictions(), x.ExamineStartAtBoot())
	if problems, failing := x.FindQueueProblems(ctx); len(problems) > 0 {
		newFinding := Warning
		if failing {
			newFinding = Failure
		}
		findings = append(findings, newFinding("work", strings.Join(problems, "; "), "see: queuectl status"))
	}
	if p.VerifyDatabase && x.StoreMaintainer == nil {
		return result, ErrStoreHasNoFiles
	}
	// While the disk is slow, do not check all data, because this would slow the disk down further and delay jobs.
	if p.VerifyDatabase && x.StoreMaintainer.SlowCommitError() == nil {
		var lastReport time.Time
		found, err := x.StoreMaintainer.VerifyData(ctx, x.OutputFiles.OutputDirs(), func(done, total int64) error {
			if time.Since(lastReport) < MinProgressInterval {
				return nil
			}
			lastReport = time.Now()
			return reportProgress(control.DoctorProgress{CheckedBytes: done, TotalBytes: total})
		})
		var e *queue.Error
		if errors.As(err, &e) && (e.Code == queue.CodeNoSpace || e.Code == queue.CodeUnavailable) {
			found, err = []store.Finding{Warning("integrity", "the queue was not checked: "+
				strings.TrimSuffix(e.Message, "; try again later"), "check it later: queuectl doctor --verify")}, nil
		}
		if err != nil {
			return result, err
		}
		findings = append(findings, found...)
	}
	return SummarizeFindings(findings), nil
}

// Warning returns a finding about a problem that asks for attention.
func Warning(checkName, message, advice string) store.Finding {
	return store.Finding{CheckName: checkName, Level: store.LevelWarning, Message: message, Advice: advice}
}

// Failure returns a finding about a problem that must be fixed.
func Failure(checkName, message, advice string) store.Finding {
	return store.Finding{CheckName: checkName, Level: store.LevelFailure, Message: message, Advice: advice}
}

// passed returns the finding of a check that has found no problem.
func passed(checkName, message string) store.Finding {
	return store.Finding{CheckName: checkName, Level: store.LevelOK, Message: message}
}

// SummarizeFindings summarizes findings. A finding that several checks have returned is listed once.
func SummarizeFindings(findings []store.Finding) control.Diagnosis {
	d := control.Diagnosis{WorstLevel: string(store.LevelOK)}
	for i, f := range findings {
		if slices.Contains(findings[:i], f) {
			continue // for example, both the quick and the thorough check have found it
		}
		if f.Level == store.LevelFailure || f.Level == store.LevelWarning && d.WorstLevel == string(store.LevelOK) {
			d.WorstLevel = string(f.Level)
		}
		d.Findings = append(d.Findings, control.Finding{CheckName: f.CheckName, Level: string(f.Level), Message: f.Message,
			Advice: f.Advice})
	}
	return d
}

// ExamineAccessSettings returns a finding if the settings section [access] contains names of unknown users or groups.
func (x *Examiner) ExamineAccessSettings() []store.Finding {
	if unknown := x.Rights.UnknownAccessNamesMessage(); unknown != "" {
		return []store.Finding{Warning("access", unknown,
			"create them ("+createAccountCommands+") or remove them from [access], then run: queuectl reload")}
	}
	return nil
}

// examineInheritedRestrictions returns a finding for each restriction that the service has inherited from the
// process that started it.
func (x *Examiner) examineInheritedRestrictions() (findings []store.Finding) {
	for _, attribute := range x.InheritedRestrictions {
		findings = append(findings, Warning("start",
			attribute+"; the service inherited this from the process that started it",
			"restart the service and its runners from a login session (queuectl service stop; queuectl service stop "+
				"--runners; queuectl service start), which ends running jobs, or install the service: queuectl service install"))
	}
	return findings
}

// ExamineDatabaseURLFile returns a finding if other accounts can read the file with the database URL, which may
// contain a password.
func ExamineDatabaseURLFile(path string) []store.Finding {
	info, err := os.Stat(path)
	if err != nil || runtime.GOOS == "windows" || info.Mode().Perm()&0o004 == 0 {
		// On Windows, only the directory's access rights protect the file.
		return nil
	}
	return []store.Finding{Warning("store", path+" contains the database URL and can be read by all users",
		"chmod o-r "+path)}
}

// examineChangedPrograms reports program files that have changed since the service started.
func (x *Examiner) examineChangedPrograms() (findings []store.Finding) {
	for _, p := range x.ProgramFiles {
		now, err := os.Stat(p.Path)
		switch {
		case err != nil:
			findings = append(findings, Failure("program", fmt.Sprintf("the file of a running program is missing: %v", err),
				"install queuectl again; this file is needed to start the service and its runners"))
		case !os.SameFile(now, p.FileInfoAtStart) || !now.ModTime().Equal(p.FileInfoAtStart.ModTime()):
			findings = append(findings, Failure("program",
				fmt.Sprintf("the file %s has changed since the service (version %s) started", p.Path, x.Version),
				"restart the service (jobs keep running): queuectl service stop --keep-jobs, then queuectl service start"))
		}
	}
	if len(findings) == 0 {
		findings = append(findings, passed("program",
			fmt.Sprintf("the running version and the installed version are both %s", x.Version)))
	}
	return findings
}

// describeLimitEnforcement describes how this machine limits the output, the run time and the processes of jobs.
// hasCgroups means that control groups enforce limits.
func (x *Examiner) describeLimitEnforcement(hasCgroups bool) string {
	if hasCgroups {
		return cgroupLimitEnforcementText
	}
	if x.RunnerLocation.SpawnSocketPath != "" && x.SystemdUnit != "" {
		return "the runner enforces timeouts and output limits; it ends process trees with control groups, unless its log " +
			"says that they are not available: journalctl -u 'queuectl-runner@*'"
	}
	return limitEnforcementText
}

// HungRunnerAdvice returns advice on how to end a runner that hangs. pid is the runner's pid, or 0 if it is
// unknown.
func HungRunnerAdvice(pid int64) string {
	if pid == 0 {
		return findHungRunnerAdvice
	}
	return fmt.Sprintf(endHungRunnerAdviceFormat, pid)
}

// examineRunners returns findings about the runners that do not reply within runnerReplyTimeout.
func (x *Examiner) examineRunners() (findings []store.Finding) {
	live, unresponsive := x.Pool.CheckRunnersAlive(runnerReplyTimeout)
	for _, pid := range unresponsive {
		findings = append(findings, Failure("runner",
			worker.RunnerDescription(pid)+" does not answer, so the state of its jobs is unknown", HungRunnerAdvice(pid)))
	}
	if len(findings) == 0 {
		findings = append(findings, passed("runner",
			fmt.Sprintf("runners that answer: %d; running jobs: %d", len(live), x.Pool.BusyWorkerCount())))
	}
	return findings
}

// ProgramFiles describes the program files of the service and of the runner, whose path is runnerPath. It omits missing
// files.
func ProgramFiles(runnerPath string) (files []parts.ProgramFile) {
	self, _ := os.Executable()
	for _, path := range []string{self, runnerPath} {
		if info, err := os.Stat(path); err == nil {
			files = append(files, parts.ProgramFile{Path: path, FileInfoAtStart: info})
		}
	}
	return files
}

// ErrStoreHasNoFiles is the error if an operation needs the store's files, but the queue is stored in PostgreSQL.
var ErrStoreHasNoFiles = queue.Errorf(queue.CodeUnsupported,
	"this queue is stored in PostgreSQL and has no files to copy or check; use PostgreSQL's tools, such as pg_dump")

// MinProgressInterval is the minimum interval between two progress messages.
const MinProgressInterval = 100 * time.Millisecond

// maxListedFormerOwners is the maximum number of former owners that a finding names.
const maxListedFormerOwners = 20

// ExamineFormerOwners returns a finding with the names of former accounts that have jobs. A former account was deleted
// or has another uid now. To save time, ExamineFormerOwners reads jobs only if former accounts exist.
func (x *Examiner) ExamineFormerOwners(ctx context.Context) []store.Finding {
	former, names := x.Owners.FormerOwnerNames(), map[string]bool{}
	f := store.JobFilter{Limit: store.MaxPageRows}
	for more := true; more && len(former) > 0; more = f.BeforeSeq != 0 {
		var page store.JobRefPage
		err := x.UserLimits.RunInSlot(ctx, control.ClassManyJobsRead, func() (err error) {
			page, err = x.Store.ListJobRefs(ctx, f)
			return err
		})
		if err != nil {
			reason, _, _ := strings.Cut(err.Error(), ";")
			return []store.Finding{Warning("owners", "jobs of former accounts were not checked: "+reason,
				"check them later: queuectl doctor")}
		}
		for _, ref := range page.Refs {
			if name, isFormer := former[ref.UID]; isFormer {
				names[name] = true
				delete(former, ref.UID)
			}
		}
		f.BeforeSeq = page.NextBeforeSeq
	}
	if len(names) == 0 {
		return nil
	}
	list := slices.Sorted(maps.Keys(names))
	if more := len(list) - maxListedFormerOwners; more > 0 {
		list = append(list[:maxListedFormerOwners], fmt.Sprintf("and %d more", more))
	}
	return []store.Finding{Warning("owners",
		"these accounts were deleted or have another uid now, so only admins can see and change the jobs "+
			"that they enqueued: "+strings.Join(list, ", "),
		"these jobs are held; to list them: queuectl list --user NAME; to let another user run one: queuectl edit "+
			"ID '{\"user\":\"ANOTHER\"}', then queuectl release ID; to remove one: queuectl rm ID")}
}

// examinePausedQueues returns a finding if queues are paused.
func (x *Examiner) examinePausedQueues() []store.Finding {
	names := x.QueueRules.PausedQueueNames(x.Store.Now())
	if len(names) == 0 {
		return nil
	}
	listed := strings.Join(names[:min(len(names), control.MaxListedPausedQueues)], " ")
	if more := len(names) - control.MaxListedPausedQueues; more > 0 {
		listed += fmt.Sprintf(" (and %d more)", more)
	}
	return []store.Finding{Warning("queues", "no jobs of these queues start, because the queues are paused: "+listed,
		"resume a queue with: queuectl queue resume NAME")}
}

// examineUserQuotas returns a finding for each user whose jobs have almost used up the user's quota of bytes.
func (x *Examiner) examineUserQuotas() (findings []store.Finding) {
	most := x.UserQuota.MaxBytesPerUser()
	for _, u := range x.UserQuota.UsersNearQuota() {
		findings = append(findings, Warning("users",
			fmt.Sprintf("the jobs of %s use %d of %d bytes; once all bytes are used, new jobs are refused",
				x.Owners.UserName(u.UID), u.StoredBytes, most),
			"remove ended jobs (queuectl cleanup), or raise the setting max_bytes_per_user"))
	}
	return findings
}
