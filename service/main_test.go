package service

import (
	"os"
	"testing"

	"github.com/queuectl/queuectl/test/pgserver"
)

// TestMain stops the PostgreSQL server of the tests at the end.
func TestMain(m *testing.M) {
	code := m.Run()
	pgserver.StopSharedServer()
	os.Exit(code)
}
