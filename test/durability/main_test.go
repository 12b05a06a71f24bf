//go:build linux || windows

package durability

import (
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

func TestMain(m *testing.M) { testrig.RunPackageTests(m, testrig.DiskServerRole) }
