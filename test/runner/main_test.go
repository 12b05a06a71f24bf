//go:build linux || windows

package runner

import (
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

func TestMain(m *testing.M) { testrig.RunPackageTests(m, testrig.DiskServerRole) }
