//go:build linux || windows

package process

import (
	"bytes"
	"fmt"
)

const (
	maxSecretBytes = 64 << 10 // maximum size of a secret, in bytes
	// minMaskedBytes is the minimum size of a secret that is masked, in bytes. A shorter text is too likely
	// to occur in ordinary output.
	minMaskedBytes = 4
)

// buildEnv returns the command's environment, including its secrets. If r.command.MaskSecrets is set,
// buildEnv also makes the output log mask the secrets.
func (r *run) buildEnv() (env []string, err error) {
	if len(r.command.Secrets) == 0 {
		return r.command.Env, nil
	}
	env = append(make([]string, 0, len(r.command.Env)+len(r.command.Secrets)+1), r.command.Env...)
	var maskedTexts [][]byte
	for _, s := range r.command.Secrets {
		value := s.Value
		if s.Path != "" {
			value, err = r.readSecret(s.Path)
		}
		if err == nil {
			value, err = trimFinalNewline(value)
		}
		if err != nil {
			return nil, &fieldError{"env_secret " + s.Name, err, IsPermanent(err)}
		}
		env = append(env, s.Name+"="+string(value))
		if len(value) < minMaskedBytes {
			continue
		}
		maskedTexts = append(maskedTexts, value)
		// A terminal translates \n to \r\n, so mask the text with \r\n too.
		if r.command.TTY {
			maskedTexts = append(maskedTexts, bytes.ReplaceAll(value, []byte("\n"), []byte("\r\n")))
		}
	}
	if r.command.MaskSecrets && len(maskedTexts) > 0 {
		r.command.Log.SetMaskedTexts(maskedTexts)
		if r.command.ProgressHandler != nil {
			r.command.ProgressHandler.SetMasks(maskedTexts)
		}
	}
	return env, nil
}

// trimFinalNewline returns the secret in the content of a file: everything except the final newline.
func trimFinalNewline(raw []byte) ([]byte, error) {
	if len(raw) > maxSecretBytes {
		return nil, UnusableError(fmt.Sprintf("the value is larger than %d bytes", maxSecretBytes))
	}
	if bytes.IndexByte(raw, 0) >= 0 {
		return nil, UnusableError("the value contains a NUL byte, which an environment variable cannot contain")
	}
	value, found := bytes.CutSuffix(raw, []byte("\n"))
	if found {
		value = bytes.TrimSuffix(value, []byte("\r"))
	}
	return value, nil
}
