package service

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/queuectl/queuectl/internal/atomicfile"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/service/cluster"
)

// nodeIDFileName is the name of a file in the state directory. It contains a random id, which distinguishes
// this node from other nodes with the same name.
const nodeIDFileName = "node.id"

// loadNodeIdentity returns the identity with which this service joins a queue that several nodes share. It
// creates the file with the node's id if the file does not exist.
func (st *startup) loadNodeIdentity() (nodeIdentity, error) {
	m := nodeIdentity{NodeName: st.nodeName(), ProgramVersion: st.Version,
		LeaseDuration: st.Settings.CurrentConfig().NodeLease}
	path := filepath.Join(st.Paths.StateDir, nodeIDFileName)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		raw, err = createNodeIDFile(path)
	}
	m.StateDirID = strings.TrimSpace(string(raw))
	if err == nil && m.StateDirID == "" {
		err = queue.Errorf(queue.CodeInvalid, "the file %s is empty; remove it (jobs that ran on this node are "+
			"then treated as lost)", path)
	}
	if boot, unknown := process.BootID(); unknown == nil {
		m.StateDirLocation = boot + "/" + storeFileID(path)
	}
	return m, err
}

// createNodeIDFile writes a new random id to the file at path and returns it.
func createNodeIDFile(path string) (content []byte, err error) {
	id := make([]byte, 16)
	rand.Read(id) // rand.Read never fails
	content = []byte(hex.EncodeToString(id) + "\n")
	return content, atomicfile.Write(path, content, 0o600)
}

// replaceNodeID gives this node a new identity. This is needed if the state directory was copied from another
// node, for example with a machine image.
func (st *startup) replaceNodeID() error {
	path := filepath.Join(st.Paths.StateDir, nodeIDFileName)
	st.Log.Warn("this state directory is a copy of the state directory of another node whose service is running; this "+
		"service continues as a separate node", "file", path)
	_, err := createNodeIDFile(path)
	return err
}

// checkStoreMatchesIDFile returns an error if the queue of this state directory is in a database on a server, but the
// settings no longer name that database. Otherwise the service would silently start a new, empty queue.
func checkStoreMatchesIDFile(dir string) error {
	path := filepath.Join(dir, cluster.StoreIDFileName)
	database, err := os.ReadFile(path)
	_, statErr := os.Stat(storeLocation{Dir: dir}.String())
	if err != nil || len(bytes.TrimSpace(database)) == 0 || !errors.Is(statErr, fs.ErrNotExist) {
		return nil
	}
	return queue.Errorf(queue.CodeInvalid, `the queue of this service is in a database on a server, but the settings `+
		`name no database; set the setting "store" or store_file again, or start a new queue in %s by removing %s`,
		dir, path)
}

// prepareForNewStore prepares this service to use another store than the previous service in this directory. It ends
// the idle runners of the previous service. If a runner has jobs that the new store does not know, it returns an error,
// because this service must neither end these jobs nor start them again. (After "queuectl migrate", the new store knows
// all jobs.)
func (s *Service) prepareForNewStore(ctx context.Context) error {
	path := filepath.Join(s.Paths.StateDir, cluster.StoreIDFileName)
	raw, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	now := ""
	if s.Cluster != nil {
		now = s.Cluster.DatabaseIdentifier()
	}
	if now == strings.TrimSpace(string(raw)) {
		return s.ignoreOlderOutputs(now)
	}
	leftover, err := s.Store.PreviousSession(ctx)
	if err != nil {
		return err
	}
	known := map[queue.Lease]bool{}
	for i := range leftover.LeasedJobs {
		known[leftover.LeasedJobs[i].Lease()] = true
	}
	dirs, err := s.RunnerLocation.ListRunnerDirs()
	if err != nil {
		return err
	}
	// idleRunnerDirs lists the directories of runners without jobs. unknownJobs lists the numbers of jobs
	// that runners have but this store does not know.
	var idleRunnerDirs, unknownJobs []string
	for _, dir := range dirs {
		list, alive, err := runner.UnsettledLeases(dir)
		if err != nil {
			return err
		}
		if alive && len(list) == 0 {
			idleRunnerDirs = append(idleRunnerDirs, dir)
		}
		for _, l := range list {
			if !known[queue.Lease{Seq: l.Seq, Fence: l.Fence}] {
				unknownJobs = append(unknownJobs, fmt.Sprint(l.Seq))
			}
		}
	}
	if len(unknownJobs) > 0 {
		return &ExitError{ExitCodeConfig,
			fmt.Errorf("runners on this node still have jobs of the previous store (job numbers "+
				"%s); use that store again until these jobs have ended, move the jobs with queuectl migrate, or end the jobs%s",
				queue.ClipForMessage(strings.Join(unknownJobs, ", ")), s.endRunnersHint())}
	}
	for _, dir := range idleRunnerDirs {
		if err := s.RunnerLocation.KillRunner(dir); err != nil {
			return fmt.Errorf("cannot end the idle runner in %s, which belongs to the previous store; wait a minute "+
				"until it ends by itself, then start the service again: %w", dir, err)
		}
	}
	return s.writeStoreIDFile(now)
}

// writeStoreIDFile writes the file cluster.StoreIDFileName. database identifies the database on a server; "" means a
// store in files.
func (s *Service) writeStoreIDFile(databaseIdentifier string) error {
	if databaseIdentifier != "" {
		databaseIdentifier += "\n"
	}
	return atomicfile.Write(filepath.Join(s.Paths.StateDir, cluster.StoreIDFileName), []byte(databaseIdentifier),
		0o600)
}

// ignoreOlderOutputs makes this service ignore output files that are older than the queue. Such files exist if the
// database of an earlier queue was moved away and a new queue uses the same state directory. ignoreOlderOutputs writes
// the file cluster.StoreIDFileName again, because output files older than this file do not belong to this queue. If
// jobs were ever enqueued, the queue is not new, and ignoreOlderOutputs does nothing.
func (s *Service) ignoreOlderOutputs(databaseIdentifier string) error {
	if s.Store.Counts().JobsEverEnqueued > 0 {
		return nil
	}
	for _, dir := range s.RunnerLocation.OutputDirs() {
		if files, err := os.ReadDir(dir); err == nil && len(files) > 0 {
			return s.writeStoreIDFile(databaseIdentifier)
		}
	}
	return nil
}

// endOrphanProcesses ends processes of jobs whose runners have died. While the store is unavailable, other
// nodes may take over these jobs and start them again. So the service calls endOrphanProcesses before it
// opens the store, and after a failed start.
func (st *startup) endOrphanProcesses() {
	settings := st.Settings.CurrentConfig()
	if url, err := settings.StoreURL(); err != nil || url == "" || settings.OnPartition != "stop" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), endOrphansTimeout)
	defer cancel()
	dirs, err := runner.RunnersLocation{RunnersDir: cluster.RunnersDir(st.Paths)}.ListRunnerDirs()
	for _, dir := range dirs {
		if alive, unknown := runner.IsAlive(dir); alive || unknown != nil {
			continue
		}
		if _, failed := runner.RecoverDeadRunner(ctx, dir, nil, nil, nil); failed != nil {
			err = failed
		}
	}
	if err != nil {
		st.Log.Warn("the service could not end all processes of jobs whose runners have died, so some may still run; the "+
			"environment of such a process contains QUEUECTL_JOB_ID", "error", err)
	}
}

// endOrphansTimeout bounds the duration of endOrphanProcesses.
const endOrphansTimeout = 5 * time.Second
