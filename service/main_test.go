package service

import (
	"os"
	"testing"

	"github.com/queuectl/queuectl/test/pgserver"
)

func TestMain(m *testing.M) {
	code := m.Run()
	pgserver.StopShared()
	os.Exit(code)
}
