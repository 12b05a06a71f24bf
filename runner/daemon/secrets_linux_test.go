package daemon

import (
	"slices"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/runner/launcher"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

// A secret is read from a file or from a credential of the runner. If the account of an attempt may not use a
// credential, the error names the environment variable.
func TestSecretsComeFromFilesOrCredentials(t *testing.T) {
	s := &server{Options: Options{RunnerSettings: launcher.RunnerSettings{
		Credentials: map[string][]byte{"db": []byte("p4ss")}}}}
	list, err := s.readSecrets(&wire.StartAttempt{AccountUID: -1, Secrets: []string{"A=/etc/a=b"}})
	equal := func(a, b process.Secret) bool {
		return a.EnvVarName == b.EnvVarName && a.FilePath == b.FilePath && string(a.Value) == string(b.Value)
	}
	if want := []process.Secret{{EnvVarName: "A", FilePath: "/etc/a=b"}}; err != nil ||
		!slices.EqualFunc(list, want, equal) {
		t.Errorf("a file: got %+v, %v, want %+v", list, err, want)
	}
	list, err = s.readSecrets(&wire.StartAttempt{AccountUID: -1, Secrets: []string{"S=credential:db"}})
	if want := []process.Secret{{EnvVarName: "S", Value: []byte("p4ss")}}; err != nil ||
		!slices.EqualFunc(list, want, equal) {
		t.Errorf("a credential: got %+v, %v, want %+v", list, err, want)
	}
	_, err = s.readSecrets(&wire.StartAttempt{AccountUID: -1, Secrets: []string{"S=credential:other"}})
	if err == nil || !strings.HasPrefix(err.Error(), "env_secret S: credential other: ") {
		t.Errorf("a credential that is not allowed: got %v, want an error that names S", err)
	}
}
