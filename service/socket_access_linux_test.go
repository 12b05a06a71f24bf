package service

import (
	"testing"

	"github.com/queuectl/queuectl/config"
)

// The group that may use the socket can be a group that exists only in a network directory, such as LDAP.
func TestSocketGroupMayBeInNetworkDirectory(t *testing.T) {
	b, err := readStartupSettings(Options{})
	if err != nil {
		t.Fatal(err)
	}
	b.UserDirectory.GetentFunc = func(database, key string) (string, error) {
		return map[string]string{"group dirgroup": "dirgroup:*:61411:dora"}[database+" "+key], nil
	}
	if err := b.Settings.ReplaceFileLayer(config.Layer{Origin: config.FromFile,
		ValuesBySetting: map[string]string{"socket_group": "dirgroup"}}); err != nil {
		t.Fatal(err)
	}
	if perms, err := b.socketPerms(&b.Settings.CurrentConfig().Settings); err != nil || perms.GID != 61411 {
		t.Errorf("the socket's group: %+v, %v", perms, err)
	}
}
