package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/systemd"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// Examiner checks the queue and its environment.
type Examiner struct {
	files       store.Maintainer // the store's maintenance operations; nil if it has none
	home        runner.Home
	inherited   []string // restrictions that the service inherited; see Options
	places      config.Places
	pool        *worker.Pool
	store       store.Store
	unit        systemd.Unit // the systemd unit of the service
	version     string
	boot        *bootAdvisor
	endpoint    *endpoint
	health      *healthCheck
	outputFiles *outputFiles
	owners      *owners
	quota       *quota
	reader      *jobReader
	rights      *rights
	settings    *keeper

	programs []programFile
}

// doctorTimeout is how long doctor waits for a runner to answer.
const doctorTimeout = 2 * time.Second

// Doctor implements control.API.
func (d *Examiner) Doctor(ctx context.Context, p control.Doctor, each func(control.Progress) error) (control.Diagnosis, error) {
	var list []store.Finding
	if known, can := d.store.(store.Examiner); can {
		list = known.Examine(ctx)
	}
	if d.files == nil { // a store in files checks the state directory in Examine
		list = append(list, examineStoreDir(d.places.State)...)
	}
	mode, _ := d.settings.config.Load().Socket()
	if d.endpoint.inherited {
		mode = 0o777 // allow any mode, since the systemd socket unit defines it
	}
	list = append(list, examinePlaces(d.places, mode)...)
	list = append(list, d.examineAccess()...)
	list = append(list, examineStoreFile(d.settings.config.Load().StoreFile)...)
	list = append(list, d.examineOwners(ctx)...)
	list = append(list, d.examineUsers()...)
	list = append(list, d.examinePrograms()...)
	list = append(list, d.examineRunners()...)
	list = append(list, d.examineLauncher()...)
	list = append(list, d.examineEnforcement(ctx)...)
	list = append(list, examineLimits(d.settings.config.Load())...)
	list = append(list, d.examineInherited()...)
	list = append(list, d.examineBoot()...)
	if problems, failing := d.health.problems(ctx); len(problems) > 0 {
		level := store.Warning
		if failing {
			level = store.Failure
		}
		list = append(list, store.Finding{Check: "work", Level: level, Message: strings.Join(problems, "; "), Next: "see: queuectl status"})
	}
	if p.Verify && d.files == nil {
		return control.Diagnosis{}, errNoFiles
	}
	// If a slow disk delays the store, the check would only wait for the disk.
	if p.Verify && d.files.Slow() == nil {
		var lastReport time.Time
		found, err := d.files.Verify(ctx, d.outputFiles.outputs(), func(done, total int64) error {
			if time.Since(lastReport) < progressInterval {
				return nil
			}
			lastReport = time.Now()
			return each(control.Progress{Done: done, Of: total})
		})
		var e *queue.Error
		if errors.As(err, &e) && (e.Code == queue.CodeNoSpace || e.Code == queue.CodeUnavailable) {
			found, err = []store.Finding{{Check: "integrity", Level: store.Warning, Message: "the queue was not checked: " + e.Message, Next: "try again later: queuectl doctor --verify"}}, nil
		}
		if err != nil {
			return control.Diagnosis{}, err
		}
		list = append(list, found...)
	}
	return diagnose(list), nil
}

// Examine checks the files of a service that is not running. The parameter start is the command that starts
// the service, and begin is the command that creates its queue.
func Examine(p config.Places, start, begin string, verify bool) (control.Diagnosis, error) {
	if _, err := os.Stat(p.State); errors.Is(err, fs.ErrNotExist) {
		return diagnose([]store.Finding{{Check: "service", Level: store.Warning, Message: "there is no queue in " + p.State + " yet", Next: "start with: " + begin}}), nil
	}
	lock, err := lockForReading(p.State)
	if err != nil {
		return control.Diagnosis{}, err
	}
	defer lock.Close()
	list := []store.Finding{{Check: "service", Level: store.Warning, Message: "the service is not running, so only its files were checked", Next: "start it with: " + start}}
	switch location, err := locationIn(p); {
	case err != nil:
		list = append(list, store.Finding{Check: "settings", Level: store.Failure, Message: err.Error(), Next: "queuectl config validate"})
	case location.URL == "":
		list = append(list, examineEngine(p.State, outputsOf(p), verify)...)
	case verify:
		return control.Diagnosis{}, errNoFiles
	default:
		list = append(append(list, examineServer(context.Background(), location.URL)...), examineStoreDir(p.State)...)
	}
	return diagnose(append(list, examinePlaces(p, 0o777)...)), nil
}

func diagnose(list []store.Finding) control.Diagnosis {
	d := control.Diagnosis{Level: string(store.Fine)}
	for i, f := range list {
		if slices.Contains(list[:i], f) {
			continue // both the quick and the thorough check have found this; list it once
		}
		if f.Level == store.Failure || f.Level == store.Warning && d.Level == string(store.Fine) {
			d.Level = string(f.Level)
		}
		d.Findings = append(d.Findings, control.Finding{Check: f.Check, Level: string(f.Level), Message: f.Message, Next: f.Next})
	}
	return d
}

// outputsOf returns the output directories of a service that is not running. These are the service's own
// directories, and those of root's runners if there are any.
func outputsOf(p config.Places) store.OutputDirs {
	list := runner.Home{Dir: runnersDir(p)}.Outputs()
	if roots := rootRunnersDir(p); roots != "" {
		list = append(list, runner.Home{Dir: roots}.Outputs()...)
	}
	return store.OutputDirs{Dirs: list, Since: outputsSince(p.State)}
}

func (o *outputFiles) outputs() store.OutputDirs {
	list := runner.Home{Dir: runnersDir(o.places)}.Outputs()
	if o.home.Socket != "" {
		list = append(list, o.home.Outputs()...)
	}
	return store.OutputDirs{Dirs: list, Since: outputsSince(o.places.State)}
}

// examineAccess checks whether the names in [access] exist.
func (d *Examiner) examineAccess() []store.Finding {
	if unknown := d.rights.unknownNames(); unknown != "" {
		return []store.Finding{{Check: "access", Level: store.Warning, Message: unknown, Next: "create them (" + makeAccounts + ") or remove them from [access], then run: queuectl reload"}}
	}
	return nil
}

// examineInherited reports the attributes that the service inherited from the process that started it.
func (d *Examiner) examineInherited() (list []store.Finding) {
	for _, attribute := range d.inherited {
		list = append(list, store.Finding{
			Check: "start", Level: store.Warning, Message: "inherited from the process that started the service: " + attribute,
			Next: "restart the service and its runners from a login session (queuectl service stop; queuectl service stop --runners; queuectl service start), which ends running jobs, or install the service: queuectl service install",
		})
	}
	return list
}

// examineStoreFile checks who may read the file with the database URL, which may contain a password.
func examineStoreFile(path string) []store.Finding {
	info, err := os.Stat(path)
	if err != nil || runtime.GOOS == "windows" || info.Mode().Perm()&0o004 == 0 {
		// On Windows, the directory's access rights protect the file.
		return nil
	}
	return []store.Finding{{Check: "store", Level: store.Warning, Message: path + " contains the database URL and can be read by all users", Next: "chmod o-r " + path}}
}

// programFile is the file of a program as it was when the service started.
type programFile struct {
	path string
	info os.FileInfo
}

// programFiles returns the service's own program and the program that runs jobs.
func programFiles(runner string) (list []programFile) {
	self, _ := os.Executable()
	for _, path := range []string{self, runner} {
		if info, err := os.Stat(path); err == nil {
			list = append(list, programFile{path, info})
		}
	}
	return list
}

// examinePrograms checks whether the program files are still those that are running.
func (d *Examiner) examinePrograms() (list []store.Finding) {
	for _, p := range d.programs {
		now, err := os.Stat(p.path)
		switch {
		case err != nil:
			list = append(list, store.Finding{Check: "program", Level: store.Failure, Message: fmt.Sprintf("the file of a running program is missing: %v", err), Next: "install queuectl again; this file is needed to start the service and its runners"})
		case !os.SameFile(now, p.info) || !now.ModTime().Equal(p.info.ModTime()):
			list = append(list, store.Finding{Check: "program", Level: store.Failure, Message: fmt.Sprintf("the file %s has changed since the service (version %s) started", p.path, d.version), Next: "restart the service (jobs keep running): queuectl service stop --keep-jobs, then queuectl service start"})
		}
	}
	if len(list) == 0 {
		list = append(list, store.Finding{Check: "program", Level: store.Fine, Message: fmt.Sprintf("the running version and the installed version are both %s", d.version)})
	}
	return list
}

// enforcement describes how a job's output, time and process tree are limited on this machine. The
// parameter grouped says whether control groups enforce the limits.
func (d *Examiner) enforcement(grouped bool) string {
	if grouped {
		return enforcementInGroups
	}
	if d.home.Socket != "" && d.unit != "" {
		return "the runner enforces timeouts and output limits, and uses one control group per worker to end process trees, unless the runner's log reports otherwise"
	}
	return enforcement
}

// howToEnd returns advice on how a user can end a runner that hangs. pid 0 means that the runner's pid is
// unknown.
func howToEnd(pid int64) string {
	if pid == 0 {
		return findHung
	}
	return fmt.Sprintf(endHung, pid)
}

// examineRunners checks whether the runners answer.
func (d *Examiner) examineRunners() []store.Finding {
	live, unresponsive := d.pool.Runners(doctorTimeout)
	var list []store.Finding
	for _, pid := range unresponsive {
		list = append(list, store.Finding{Check: "runner", Level: store.Failure, Message: worker.NameRunner(pid) + " does not answer, so the state of its jobs is unknown", Next: howToEnd(pid)})
	}
	if len(list) == 0 {
		list = append(list, store.Finding{Check: "runner", Level: store.Fine, Message: fmt.Sprintf("runners that answer: %d; running jobs: %d", len(live), d.pool.Busy())})
	}
	return list
}
