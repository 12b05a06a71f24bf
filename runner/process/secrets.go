//go:build linux || windows

package process

import (
	"bytes"
	"fmt"
	"os"

	"github.com/queuectl/queuectl/runner/privdir"
)

const (
	maxSecretBytes = 64 << 10 // maximum size of a secret, in bytes
	// minMaskedSecretBytes is the minimum size of a secret that is masked, in bytes. A shorter text is too likely
	// to occur in ordinary output.
	minMaskedSecretBytes = 4
)

// buildEnv returns the command's environment, including its secrets. If r.command.MaskSecrets is set,
// buildEnv also makes the output log mask the secrets.
func (r *runningCommand) buildEnv() (env []string, err error) {
	if len(r.command.Secrets) == 0 {
		return r.command.Env, nil
	}
	env = append(make([]string, 0, len(r.command.Env)+len(r.command.Secrets)+1), r.command.Env...)
	var maskedTexts [][]byte
	for _, s := range r.command.Secrets {
		value := s.Value
		if s.FilePath != "" {
			value, err = r.readSecretFile(s.FilePath)
		}
		if err == nil {
			value, err = trimFinalNewline(value)
		}
		if err != nil {
			return nil, &jobFieldError{"env_secret " + s.EnvVarName, err, IsPermanentError(err)}
		}
		env = append(env, s.EnvVarName+"="+string(value))
		if len(value) < minMaskedSecretBytes {
			continue
		}
		maskedTexts = append(maskedTexts, value)
		// A terminal translates \n to \r\n, so mask the text with \r\n too.
		if r.command.TTY {
			maskedTexts = append(maskedTexts, bytes.ReplaceAll(value, []byte("\n"), []byte("\r\n")))
		}
	}
	if r.command.MaskSecrets && len(maskedTexts) > 0 {
		r.command.OutputLog.SetSecretsToMask(maskedTexts)
		if r.command.ProgressHandler != nil {
			r.command.ProgressHandler.SetMaskedTexts(maskedTexts)
		}
	}
	return env, nil
}

// readRegularFile reads up to maxBytes+1 bytes of a regular file that a command names (see openRegularFile).
func readRegularFile(path string, maxBytes int64) ([]byte, error) {
	handle, err := openRegularFile(path)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(handle), path)
	defer f.Close()
	return privdir.ReadBeyondLimit(f, maxBytes)
}

// trimFinalNewline returns the secret in the content of a file: everything except the final newline.
func trimFinalNewline(raw []byte) ([]byte, error) {
	if len(raw) > maxSecretBytes {
		return nil, UnusablePathError(fmt.Sprintf("the value is larger than %d bytes", maxSecretBytes))
	}
	if bytes.IndexByte(raw, 0) >= 0 {
		return nil, UnusablePathError("the value contains a NUL byte, which an environment variable cannot contain")
	}
	value, found := bytes.CutSuffix(raw, []byte("\n"))
	if found {
		value = bytes.TrimSuffix(value, []byte("\r"))
	}
	return value, nil
}
