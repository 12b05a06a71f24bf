//go:build linux || windows

package process

import (
	"bytes"
	"fmt"
)

const (
	maxSecret = 64 << 10 // maximum size of a secret, in bytes
	// minMasked is the minimum size of a secret that is masked, in bytes. A shorter text occurs in
	// ordinary output as well.
	minMasked = 4
)

// environ returns the command's environment with its secrets. If c.Mask is set, the secrets are masked
// in the output.
func (r *run) environ() (env []string, err error) {
	if len(r.c.Secrets) == 0 {
		return r.c.Env, nil
	}
	env = append(make([]string, 0, len(r.c.Env)+len(r.c.Secrets)+1), r.c.Env...)
	var mask [][]byte
	for _, s := range r.c.Secrets {
		value := s.Value
		if s.Path != "" {
			value, err = r.readSecret(s.Path)
		}
		if err == nil {
			value, err = cutSecret(value)
		}
		if err != nil {
			return nil, &fieldError{"env_secret " + s.Name, err, IsLasting(err)}
		}
		env = append(env, s.Name+"="+string(value))
		if len(value) < minMasked {
			continue
		}
		mask = append(mask, value)
		// Mask the form with \r\n as well, because a terminal translates \n to \r\n.
		if r.c.TTY {
			mask = append(mask, bytes.ReplaceAll(value, []byte("\n"), []byte("\r\n")))
		}
	}
	if r.c.Mask && len(mask) > 0 {
		r.c.Log.Mask(mask)
		if r.c.Notes != nil {
			r.c.Notes.SetMasks(mask)
		}
	}
	return env, nil
}

// cutSecret returns the secret in the content of a file: the content without its final newline.
func cutSecret(raw []byte) ([]byte, error) {
	if len(raw) > maxSecret {
		return nil, UnusableError(fmt.Sprintf("the value is larger than %d bytes", maxSecret))
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
