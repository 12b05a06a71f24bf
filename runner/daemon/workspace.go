package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/privdir"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/rundir"
)

// maxResultNestingDepth is the maximum nesting depth of the JSON that an attempt writes as its result. The
// service later puts this JSON into other JSON. See docs/decisions/0059.
const maxResultNestingDepth = 24

// resultFileName is the name of the file, in the private directory of an attempt, to which the attempt writes
// its result.
const resultFileName = "result.json"

// workspace is the private directory of one attempt, with the result and the progress that the attempt
// reports through files in it.
type workspace struct {
	server         *server
	attempt        *attempt
	dir            *workDir
	runsWithoutDir bool   // the attempt runs without a private directory, because the disk was full
	resultJSON     []byte // the attempt's result, as compact JSON; nil if it wrote no valid result
	resultError    string // why the attempt's result file is invalid; "" if it is valid or missing
	progress       progressParser
	secretTexts    [][]byte // secrets, which are replaced in everything that the attempt reports
}

// SetMaskedTexts implements process.ProgressHandler. It sets the secrets to replace in the attempt's reports. The
// attempt's result is JSON, so a secret in the result may be JSON-escaped. SetMaskedTexts therefore adds the escaped
// form of each secret.
func (ws *workspace) SetMaskedTexts(secretTexts [][]byte) {
	ws.secretTexts = secretTexts
	for _, t := range secretTexts {
		if quoted, err := json.Marshal(string(t)); err == nil {
			ws.secretTexts = append(ws.secretTexts, quoted[1:len(quoted)-1])
		}
	}
	ws.progress.secretTexts = ws.secretTexts
}

// openWorkDir creates the private directory of a command and adds the variables that name it to the command's
// environment.
func (ws *workspace) openWorkDir(c *process.Command) error {
	f := ws.dir
	deps := ws.attempt.startFrame.DependencyResults
	err := f.Open(c.RunAs)
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) { // the parent directory was removed
		if _, err = rundir.CreateRunnerWorkspaces(ws.server.RunnersDir, ws.server.JobTmpdir, ws.server.dir.runnerName,
			ws.server.accounts != nil); err == nil {
			err = f.Open(c.RunAs)
		}
	}
	if err != nil {
		if ws.runsWithoutDir = len(deps) == 0 && (errors.Is(err, syscall.ENOSPC) ||
			errors.Is(err, syscall.EDQUOT)); ws.runsWithoutDir {
			ws.server.Log.Warn("no disk space for a job's private directory; the job runs without one",
				"job", ws.attempt.startFrame.Seq, "error", err)
			return nil // a full disk must not prevent the job from running, so run it without a private directory
		}
		return err
	}
	c.PrivateDir, c.ProgressHandler = f.Dir, ws
	c.Env = append(c.Env, "QUEUECTL_TMPDIR="+f.Path, "QUEUECTL_RESULT="+filepath.Join(f.Path, resultFileName),
		"QUEUECTL_PROGRESS="+f.ProgressPath)
	if len(deps) == 0 {
		return nil
	}
	path, err := f.CreateSiblingFile("deps.json", deps)
	if err != nil {
		return fmt.Errorf("cannot write the file with the results of the job's dependencies (QUEUECTL_DEPS): %w", err)
	}
	c.Env = append(c.Env, "QUEUECTL_DEPS="+path)
	return nil
}

// collectResultAndProgress reads the result and the progress that the command left in the private directory. If the
// command has used the directory, collectResultAndProgress renames it, and a background goroutine removes it later.
// Otherwise collectResultAndProgress removes the directory immediately, or keeps it for the worker's next attempt (see
// maxWorkDirReuseGap).
func (ws *workspace) collectResultAndProgress(r *process.Result) {
	f := ws.dir
	if ws.runsWithoutDir {
		return
	}
	survived := r.HasBackgroundProcesses || r.StuckPID != 0 || r.ExitHeldByTracer
	if f.MayHaveProgress() || survived || r.EndedLeftoverCount > 0 {
		ws.progress.parse(f.DrainProgress())
		ws.progress.flush()
	}
	if len(ws.attempt.startFrame.DependencyResults) > 0 {
		f.RemoveSiblingFile("deps.json")
	}
	switch {
	case f.WasUsed() || survived:
		ws.resultJSON, ws.resultError = readResultFile(f, ws.secretTexts)
		owner, err := privdir.OwnerIdentity(f.Path)
		path := f.RenameForRemoval(survived)
		if err == nil {
			ws.server.sweeper.queueRemoval(path, owner)
		}
	case r.StartedAt.Sub(f.lastAttemptEndedAt) > maxWorkDirReuseGap && ws.server.hasNoWaitingAttempt():
		f.RemoveIfEmpty()
	}
	f.lastAttemptEndedAt = r.EndedAt
}

// readResultFile reads the result that an attempt wrote. resultJSON is nil if the attempt wrote no result or an invalid
// one. For an invalid result, resultProblem says what is wrong. Otherwise resultProblem is "".
func readResultFile(dir *workDir, secretTexts [][]byte) (resultJSON []byte, resultProblem string) {
	raw, err := dir.ReadFile(resultFileName, queue.MaxResultBytes)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, ""
	case err != nil:
		return nil, "the job's result file could not be read: " + err.Error()
	case len(raw) > queue.MaxResultBytes:
		return nil, fmt.Sprintf("larger than %d bytes", queue.MaxResultBytes)
	case len(bytes.TrimSpace(raw)) == 0:
		return nil, "empty"
	case !utf8.Valid(raw):
		return nil, "not UTF-8"
	case jsonNestingDepth(raw) > maxResultNestingDepth:
		return nil, fmt.Sprintf("nested more than %d levels deep", maxResultNestingDepth)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, output.MaskSecrets(raw, secretTexts)); err != nil {
		return nil, "not JSON: " + strings.TrimPrefix(err.Error(), "json: ")
	}
	return compact.Bytes(), ""
}

// jsonNestingDepth returns how deep JSON is nested. For invalid JSON, it is the depth before the first error.
func jsonNestingDepth(rawJSON []byte) (deepestLevel int) {
	depth, tokens := 0, json.NewDecoder(bytes.NewReader(rawJSON))
	tokens.UseNumber() // a number too large for a float64 must not end the loop
	for {
		token, err := tokens.Token()
		if err != nil {
			return deepestLevel
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth++
			deepestLevel = max(deepestLevel, depth)
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
	}
}
