package service

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/statedir"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
)

// backupPiece is how many bytes of a backup a message carries.
const backupPiece = 256 << 10

// errNoFiles refuses what only a store can do that keeps its jobs in files.
var errNoFiles = queue.Errorf(queue.CodeUnsupported, "this queue is stored in PostgreSQL and has no files to copy or check; use PostgreSQL's tools, such as pg_dump")

// tellEvery is how often it is told how far something long has come.
const tellEvery = 100 * time.Millisecond

// Backup implements control.API.
func (s *Service) Backup(ctx context.Context, _ control.Nothing, each func(control.BackupPiece) error) (control.BackupEnd, error) {
	if err := s.audit(ctx, "backup", "", nil); err != nil {
		return control.BackupEnd{}, err
	}
	if s.files == nil {
		return control.BackupEnd{}, errNoFiles
	}
	var told time.Time
	made, err := s.files.Backup(ctx, func(ref string) (io.ReadCloser, error) { return s.openOutput(ref) }, func(done, of int64) error {
		if time.Since(told) < tellEvery {
			return nil
		}
		told = time.Now()
		return each(control.BackupPiece{Done: done, Of: of})
	})
	if err != nil {
		return control.BackupEnd{}, err
	}
	defer made.Close()
	sum, sent, piece := sha256.New(), int64(0), make([]byte, backupPiece)
	for {
		n, err := io.ReadFull(made, piece)
		if n > 0 {
			sum.Write(piece[:n])
			sent += int64(n)
			if failed := each(control.BackupPiece{Base64: piece[:n], Done: sent, Of: made.Size()}); failed != nil {
				return control.BackupEnd{}, failed
			}
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return control.BackupEnd{Bytes: sent, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
		}
		if err != nil {
			return control.BackupEnd{}, err
		}
	}
}

func runnersOf(p config.Places) string { return filepath.Join(p.State, "runner") }

// rootsOf is the folder of root's runners of a service that does not run, "" if none are
// known: those of the packaged service, whose folder may have been named by --dir.
func rootsOf(p config.Places) string {
	if p.State == config.System().State {
		return config.RunnerDir
	}
	return ""
}

// restoringOf is where a backup's outputs are while it is restored.
func restoringOf(p config.Places) string { return filepath.Join(p.State, "restore.outputs") }

// openOutput opens an attempt's output file: one that was restored is among the
// service's own.
func (s *Service) openOutput(ref string) (*os.File, error) {
	f, err := s.home.Output(ref)
	if errors.Is(err, os.ErrNotExist) && s.home.Socket != "" {
		f, err = runner.Home{Dir: runnersOf(s.opt.Places)}.Output(ref)
	}
	return f, err
}

// EndRunnersWithin is how long EndRunners gives the runners of a folder to end by themselves.
func EndRunnersWithin() time.Duration { return runner.StopGrace() + endSpare }

// EndRunners ends the runners of a queue that no service uses, as the system does when it
// is shut down: their jobs get SIGTERM and, after the grace, SIGKILL. What has ended is
// kept for the next service. roots is the folder of root's runners, "" the usual one. It
// says how many there were.
func EndRunners(p config.Places, roots string) (ended int, err error) {
	lock, err := lockFolder(p.State)
	if err != nil {
		return 0, err
	}
	defer lock.Close()
	for _, h := range homesOf(p, roots) {
		n, failed := h.EndAll(EndRunnersWithin())
		ended, err = ended+n, errors.Join(err, failed)
	}
	return ended, err
}

// homesOf returns the homes of all runners of a service. roots is the directory of the runners that run as root; if it
// is empty, the usual directory is meant.
func homesOf(p config.Places, roots string) []runner.Home {
	homes := []runner.Home{{Dir: runnersOf(p)}}
	if roots = cmp.Or(roots, rootsOf(p)); roots != "" {
		homes = append(homes, runner.Home{Dir: roots})
	}
	return homes
}

// RunnersLeft reports whether runners of a stopped service are alive. It cannot know about runners in directories that
// the caller may not read, and leaves them out. roots is the same as in EndRunners.
func RunnersLeft(p config.Places, roots string) bool {
	return slices.ContainsFunc(homesOf(p, roots), func(h runner.Home) bool {
		dirs, _ := h.Find()
		return slices.ContainsFunc(dirs, func(dir string) bool {
			lives, err := runner.Lives(dir)
			return lives && err == nil
		})
	})
}

// endSpare is what the end of a runner may take beside the grace of its jobs.
const endSpare = 10 * time.Second

// Restored says what a restored backup holds, and where what was there before is now,
// "" if there was nothing.
type Restored struct {
	Jobs    int64  `json:"jobs"`
	Outputs int64  `json:"outputs"`
	Aside   string `json:"aside"`
}

// Restore puts a backup in the place of a queue that no service and no runner uses.
// What was there is kept aside. each hears how many bytes were copied so far.
func Restore(p config.Places, file string, each func(done, of int64)) (done Restored, err error) {
	if _, err := os.Stat(file); err != nil {
		return done, queue.Errorf(queue.CodeNotFound, "%v", err)
	}
	if at, err := placeIn(p); err != nil || at.URL != "" {
		return done, cmp.Or(err, error(errNoFiles))
	}
	if err := statedir.Make(p.State); err != nil {
		return done, err
	}
	lock, err := lockFolder(p.State)
	if err != nil {
		return done, err
	}
	defer lock.Close()
	live, err := runner.Home{Dir: runnersOf(p)}.Living()
	if err != nil {
		return done, err
	}
	if len(live) > 0 {
		return done, queue.Errorf(queue.CodeWrongState, "jobs of the queue in %[1]s are still running (runner %[2]s); end them first: queuectl --dir %[3]s service stop --runners", p.State, filepath.Base(live[0]), queue.Word(p.State))
	}
	fresh := restoringOf(p)
	defer os.RemoveAll(fresh)
	if err := errors.Join(os.RemoveAll(fresh), os.MkdirAll(filepath.Dir(runner.OutputPath(fresh, "1")), 0o700)); err != nil {
		return done, err
	}
	got, replace, err := restoreEngine(p.State, file, func(ref string) (io.WriteCloser, error) {
		if !runner.ValidRef(ref) {
			return nil, queue.Invalid("backup", "contains an output file with the invalid name %q; use another backup", ref)
		}
		return os.OpenFile(runner.OutputPath(fresh, ref), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	}, each)
	if err != nil {
		return done, err
	}
	done.Jobs, done.Outputs = got.Jobs, got.Outputs
	done.Aside = filepath.Join(p.State, "before-restore-"+time.Now().UTC().Format("20060102T150405.000Z"))
	if err := os.Mkdir(done.Aside, 0o700); err != nil {
		return done, err
	}
	err = replace(done.Aside, func() error {
		if err := os.Rename(runnersOf(p), filepath.Join(done.Aside, "runner")); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("move the old output files aside: %w", err)
		}
		if err := os.Rename(fresh, runnersOf(p)); err != nil {
			return fmt.Errorf("move the restored output files into place: %w", err)
		}
		return nil
	})
	if err != nil {
		return done, err
	}
	if os.Remove(done.Aside) == nil { // it is empty
		done.Aside = ""
	}
	return done, nil
}
