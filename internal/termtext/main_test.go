package termtext

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	os.Setenv("LC_ALL", "C.UTF-8") // the expected texts contain Unicode characters
	os.Exit(m.Run())
}
