package daemon

import (
	"fmt"
	"strings"

	"github.com/queuectl/queuectl/runner/launcher"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

// credentialPrefix begins a reference to a systemd credential.
const credentialPrefix = "credential:"

// secrets returns the environment variables of an attempt whose values only the runner reads. It
// returns an error if the account may not use one of them.
func (s *server) secrets(st *wire.Start) (list []process.Secret, err error) {
	for _, e := range st.Secrets {
		name, reference, _ := strings.Cut(e, "=")
		secret := process.Secret{Name: name, Path: reference}
		if credential, ok := strings.CutPrefix(reference, credentialPrefix); ok {
			secret.Path = ""
			if secret.Value, err = launcher.Credential(s.accounts, s.Credentials, credential, st.UID); err != nil {
				return nil, fmt.Errorf("env_secret %s: credential %s: %w", name, credential, err)
			}
		}
		list = append(list, secret)
	}
	return list, nil
}
