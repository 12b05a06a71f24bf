package pipe

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/internal/skip"
)

// testPipeName returns the name of the pipe that a test uses.
func testPipeName(t *testing.T) string {
	return fmt.Sprintf(`\\.\pipe\queuectl-test-%d-%s`, os.Getpid(), t.Name())
}

// listenOnTestPipe serves the pipe of a test.
func listenOnTestPipe(t *testing.T, sddl string) *Listener {
	t.Helper()
	l, err := Listen(testPipeName(t), sddl)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// connectedPipePair returns the client's end and the server's end of a connection.
func connectedPipePair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l := listenOnTestPipe(t, OwnerOnlySecurityDescriptor())
	client, err := Dial(t.Context(), testPipeName(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	for _, c := range []net.Conn{client, server} {
		c.SetDeadline(time.Now().Add(10 * time.Second))
	}
	return client, server
}

// If one end calls CloseWrite, the other end can still read the remaining data, then reads the end of file, and can
// still answer. The answer can be read even after the other end has closed the pipe completely.
func TestPeerCanReplyAfterHalfClose(t *testing.T) {
	client, server := connectedPipePair(t)
	said := slices.Repeat([]byte("0123456789"), 30_000)
	var calling sync.WaitGroup
	calling.Go(func() {
		if _, err := client.Write(said); err != nil {
			t.Error(err)
		}
		if err := client.(*conn).CloseWrite(); err != nil {
			t.Error(err)
		}
	})
	if got, err := io.ReadAll(server); err != nil || len(got) != len(said) {
		t.Fatalf("got %d bytes, %v, want %d", len(got), err, len(said))
	}
	calling.Wait()
	if n, err := server.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after the end: %d bytes, %v", n, err)
	}
	if _, err := io.WriteString(server, "the answer"); err != nil {
		t.Fatal(err)
	}
	server.Close()
	if got, err := io.ReadAll(client); err != nil || string(got) != "the answer" {
		t.Errorf("got %q, %v", got, err)
	}
}

// After CloseWrite, the server still receives data from the client.
func TestServerReceivesAfterHalfClose(t *testing.T) {
	client, server := connectedPipePair(t)
	var serving sync.WaitGroup
	serving.Go(func() {
		if _, err := io.WriteString(server, "all that there is"); err != nil {
			t.Error(err)
		}
		if err := server.(*conn).CloseWrite(); err != nil {
			t.Error(err)
		}
		if _, err := server.Write([]byte("x")); !errors.Is(err, errLocalEndClosed) {
			t.Errorf("a write after the end: %v", err)
		}
	})
	if got, err := io.ReadAll(client); err != nil || string(got) != "all that there is" {
		t.Errorf("got %q, %v", got, err)
	}
	serving.Wait()
	io.WriteString(client, "x")
	if n, err := server.Read(make([]byte, 1)); n != 1 {
		t.Errorf("got %d bytes, %v", n, err)
	}
}

// A deadline ends a read, a write to a full pipe, and a call of Accept.
func TestDeadlineEndsReadWriteAndAccept(t *testing.T) {
	client, server := connectedPipePair(t)
	late := func(what string, err error) {
		t.Helper()
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("%s: got %v, want a timeout", what, err)
		}
	}
	client.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	_, err := client.Read(make([]byte, 1))
	late("read", err)
	server.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
	for err = nil; err == nil; {
		_, err = server.Write(make([]byte, pipeBufferBytes))
	}
	late("write", err)
	l, err := Listen(testPipeName(t)+"-2", OwnerOnlySecurityDescriptor())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.SetDeadline(time.Now().Add(10 * time.Millisecond))
	for range 2 {
		_, err = l.Accept()
		late("accept", err)
	}
}

// If no server serves a pipe, Dial returns fs.ErrNotExist. It also does so if the pipe had a server before.
func TestDialWithoutServerReturnsNotExist(t *testing.T) {
	if _, err := Dial(t.Context(), testPipeName(t)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	l := listenOnTestPipe(t, OwnerOnlySecurityDescriptor())
	c, err := Dial(t.Context(), testPipeName(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("who was not accepted: got %v", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept: got %v", err)
	}
	if _, err := Dial(t.Context(), testPipeName(t)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the end: got %v", err)
	}
}

// Each end identifies the other end: its user, the groups that grant access, and its process.
func TestBothPipeEndsIdentifyTheirPeer(t *testing.T) {
	client, server := connectedPipePair(t)
	self, err := SelfIdentity()
	if err != nil {
		t.Fatal(err)
	}
	got, err := IdentifyClient(server)
	if err != nil {
		t.Fatal(err)
	}
	if !got.User.Equals(self.User) || got.PID != os.Getpid() ||
		!slices.EqualFunc(got.EnabledGroups, self.EnabledGroups, (*windows.SID).Equals) || len(got.EnabledGroups) == 0 {
		t.Errorf("the client is %+v, want %+v", got, self)
	}
	owner, err := IdentifyServer(client)
	if err != nil {
		t.Fatal(err)
	}
	own := owner.User.Equals(self.User) || slices.ContainsFunc(self.EnabledGroups, owner.User.Equals)
	if !own || owner.PID != os.Getpid() {
		t.Errorf("the server is %+v (%s), want %+v", owner, owner.User, self)
	}
	if IsClosedByPeer(server) {
		t.Error("the client has hung up")
	}
	if client.Close(); !IsClosedByPeer(server) {
		t.Error("the client has not hung up")
	}
}

// If a client did not set SECURITY_SQOS_PRESENT, Windows identifies the client only after its first data has arrived.
// IdentifyClient waits for this data until the deadline, and Read returns the data later.
func TestClientWithoutSQOSIsIdentifiedAfterFirstData(t *testing.T) {
	client, server := connectedPipePair(t)
	real := impersonatePipeClient
	defer func() { impersonatePipeClient = real }()
	asked := 0
	impersonatePipeClient = func(h windows.Handle) error {
		if asked++; asked < 3 {
			// Windows returns this error while the server has read no data from the client.
			return windows.ERROR_CANNOT_IMPERSONATE
		}
		return real(h)
	}
	server.SetDeadline(time.Now().Add(10 * time.Millisecond))
	var timeout net.Error
	if _, err := IdentifyClient(server); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("who says nothing: got %v", err)
	}
	server.SetDeadline(time.Now().Add(10 * time.Second))
	io.WriteString(client, "hello, ")
	self, _ := SelfIdentity()
	if got, err := IdentifyClient(server); err != nil || !got.User.Equals(self.User) || asked != 3 {
		t.Errorf("got %+v, %v, asked %d times", got, err, asked)
	}
	io.WriteString(client, "world")
	var closing sync.WaitGroup
	closing.Go(func() {
		if err := client.(*conn).CloseWrite(); err != nil {
			t.Error(err)
		}
	})
	if got, err := io.ReadAll(server); err != nil || string(got) != "hello, world" {
		t.Errorf("got %q, %v", got, err)
	}
	closing.Wait()
}

// IdentifyClient also identifies a client that opens the pipe like a file, as clients written in other languages do.
func TestClientOpeningPipeAsFileIsIdentified(t *testing.T) {
	l := listenOnTestPipe(t, OwnerOnlySecurityDescriptor())
	plain, err := os.OpenFile(testPipeName(t), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if _, err := plain.WriteString("hello"); err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	server.SetDeadline(time.Now().Add(10 * time.Second))
	self, _ := SelfIdentity()
	if got, err := IdentifyClient(server); err != nil || !got.User.Equals(self.User) || got.PID != os.Getpid() {
		t.Errorf("got %+v, %v", got, err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(server, b); string(b) != "hello" {
		t.Errorf("got %q, %v", b, err)
	}
}

// An account that the security descriptor does not contain cannot connect.
func TestAccountNotInDescriptorCannotConnect(t *testing.T) {
	skip.UnderWine(t, "needs Windows, which checks descriptors of pipes; the tests of service check the descriptor")
	listenOnTestPipe(t, "D:P(D;;GA;;;WD)")
	if c, err := Dial(t.Context(), testPipeName(t)); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("got %v, %v", c, err)
	}
}

// If a name is in use, Listen waits up to nameInUseTimeout, because the service that uses it may be ending.
func TestListenWaitsForNameInUse(t *testing.T) {
	for _, busy := range []error{windows.ERROR_ACCESS_DENIED, windows.ERROR_PIPE_BUSY} {
		synctest.Test(t, func(t *testing.T) {
			began, free := time.Now(), false
			try := func() error {
				if free {
					return nil
				}
				return busy
			}
			if err := retryWhileNameTaken(try); !errors.Is(err, busy) || time.Since(began) < nameInUseTimeout ||
				time.Since(began) > nameInUseTimeout+time.Second {
				t.Errorf("got %v after %v", err, time.Since(began))
			}
			time.AfterFunc(nameInUseTimeout/2, func() { free = true })
			if err := retryWhileNameTaken(try); err != nil {
				t.Errorf("a name that is free later: %v", err)
			}
		})
	}
	if err := retryWhileNameTaken(func() error { return windows.ERROR_INVALID_NAME }); !errors.Is(err,
		windows.ERROR_INVALID_NAME) {
		t.Errorf("got %v", err)
	}
}

// If a client keeps the pipe of a dead server open, the next server can still use the name.
func TestNewServerReusesDeadServersName(t *testing.T) {
	first := listenOnTestPipe(t, OwnerOnlySecurityDescriptor())
	held, err := Dial(t.Context(), testPipeName(t))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	c, err := first.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	first.Close()
	listenOnTestPipe(t, OwnerOnlySecurityDescriptor())
	next, err := Dial(t.Context(), testPipeName(t))
	if err != nil {
		t.Fatal(err)
	}
	next.Close()
	for _, dead := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			// Windows denies access if a new server uses the name of a dead server.
			denied := func() (windows.Handle, error) { return 0, windows.ERROR_ACCESS_DENIED }
			h, err := createFirstPipeInstance(denied, func() (windows.Handle, error) { return 7, nil },
				func() bool { return dead })
			if dead != (err == nil && h == 7) || !dead && !errors.Is(err, windows.ERROR_ACCESS_DENIED) {
				t.Errorf("dead %v: got %v, %v", dead, h, err)
			}
		})
	}
}

// A server that takes over the name of a dead server replaces the pipe's access list by its own. isPipeAbandoned
// returns true only for a name that no process serves.
func TestNameTakeoverReplacesAccessList(t *testing.T) {
	if !isPipeAbandoned(testPipeName(t)) {
		t.Error("a name that no process serves is not abandoned")
	}
	listenOnTestPipe(t, OwnerOnlySecurityDescriptor())
	if isPipeAbandoned(testPipeName(t)) {
		t.Error("a name that is served is abandoned")
	}
	sd, err := windows.SecurityDescriptorFromString("D:P(A;;0x12019b;;;BU)(A;;GA;;;WD)")
	if err != nil {
		t.Fatal(err)
	}
	h, err := takeOverPipeName(testPipeName(t), sd)
	if err != nil {
		t.Fatal(err)
	}
	defer windows.CloseHandle(h)
	next, err := Dial(t.Context(), testPipeName(t))
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if sd, err := windows.GetSecurityInfo(next.(*conn).handle(), windows.SE_KERNEL_OBJECT,
		windows.DACL_SECURITY_INFORMATION); err != nil || !strings.Contains(sd.String(), "(A;;0x12019b;;;BU)") {
		t.Errorf("access list: %s, %v", sd, err)
	}
}

// A server takes over a dead server's name only if this account, the system or the administrators
// created the pipe.
func TestOnlyTrustedAccountsNamesAreTakenOver(t *testing.T) {
	self, err := SelfIdentity()
	if err != nil {
		t.Fatal(err)
	}
	for account, want := range map[string]bool{self.User.String(): true, "S-1-5-18": true, "S-1-5-32-544": true,
		"S-1-5-32-545": false, "S-1-1-0": false, "S-1-5-21-1-2-3-1001": false} {
		sid, err := windows.StringToSid(account)
		if err != nil {
			t.Fatal(err)
		}
		if got := isTrustedAccount(sid); got != want {
			t.Errorf("%s: %v", account, got)
		}
	}
}

// A group of a token grants access only if it is enabled. Deny-only groups, as in the token of an
// administrator without elevation, never grant access. Nor does the group of the logon session.
func TestOnlyEnabledGroupsGrantAccess(t *testing.T) {
	for attributes, want := range map[uint32]bool{
		windows.SE_GROUP_ENABLED: true,
		windows.SE_GROUP_ENABLED | windows.SE_GROUP_MANDATORY | windows.SE_GROUP_ENABLED_BY_DEFAULT | windows.SE_GROUP_OWNER: true,
		windows.SE_GROUP_USE_FOR_DENY_ONLY: false, windows.SE_GROUP_USE_FOR_DENY_ONLY | windows.SE_GROUP_ENABLED: false,
		0: false,
		windows.SE_GROUP_INTEGRITY | windows.SE_GROUP_INTEGRITY_ENABLED: false,
		windows.SE_GROUP_LOGON_ID | windows.SE_GROUP_ENABLED:            false,
	} {
		if got := groupGrantsAccess(attributes); got != want {
			t.Errorf("%#x: %v", attributes, got)
		}
	}
}

// IdentifyClient rejects a program in a sandbox, because the program has fewer rights than its user.
func TestSandboxedClientIsNotIdentifiedAsUser(t *testing.T) {
	t.Run("by its token", func(t *testing.T) {
		_, server := connectedPipePair(t)
		real := isSandboxedToken
		defer func() { isSandboxedToken = real }()
		isSandboxedToken = func(windows.Token) (bool, error) { return true, nil }
		if got, err := IdentifyClient(server); !errors.Is(err, ErrClientSandboxed) {
			t.Errorf("got %+v, %v", got, err)
		}
	})
	t.Run("a restricted token", func(t *testing.T) {
		skip.UnderWine(t, "needs Windows, which restricts tokens; the workflow windows runs it")
		everyone, err := windows.CreateWellKnownSid(windows.WinWorldSid)
		if err != nil {
			t.Fatal(err)
		}
		var own, restricted windows.Token
		if err := windows.OpenProcessToken(windows.CurrentProcess(),
			windows.TOKEN_DUPLICATE|windows.TOKEN_QUERY|windows.TOKEN_ASSIGN_PRIMARY, &own); err != nil {
			t.Fatal(err)
		}
		defer own.Close()
		only := windows.SIDAndAttributes{Sid: everyone}
		if ok, _, err := advapi32.NewProc("CreateRestrictedToken").Call(uintptr(own), 0, 0, 0, 0, 0, 1,
			uintptr(unsafe.Pointer(&only)), uintptr(unsafe.Pointer(&restricted))); ok == 0 {
			t.Fatal(err)
		}
		defer restricted.Close()
		if in, err := isSandboxedToken(restricted); !in || err != nil {
			t.Errorf("restricted: %v, %v", in, err)
		}
		if in, err := isSandboxedToken(own); in || err != nil {
			t.Errorf("its own: %v, %v", in, err)
		}
	})
}

// If a thread cannot stop acting with the rights of the client, IdentifyClient returns an error, and no other goroutine
// runs on that thread.
func TestFailedRevertEndsImpersonatingThread(t *testing.T) {
	_, server := connectedPipePair(t)
	revertToSelf = func() error { return errors.Join(windows.RevertToSelf(), windows.ERROR_GEN_FAILURE) }
	defer func() { revertToSelf = windows.RevertToSelf }()
	if _, err := IdentifyClient(server); !errors.Is(err, windows.ERROR_GEN_FAILURE) {
		t.Errorf("got %v", err)
	}
}

// While a listener serves a name, a second listener for the same name is refused.
func TestSecondListenerForNameIsRefused(t *testing.T) {
	skip.UnderWine(t, "needs Windows, which rejects a second listener; see TestListenWaitsForNameInUse")
	listenOnTestPipe(t, OwnerOnlySecurityDescriptor())
	if l, err := Listen(testPipeName(t), OwnerOnlySecurityDescriptor()); err == nil {
		l.Close()
		t.Error("a second listener was accepted")
	}
}

// The access list of a pipe can change while a listener serves it. Existing connections stay open.
func TestPipeAccessChangesWhileListening(t *testing.T) {
	l := listenOnTestPipe(t, OwnerOnlySecurityDescriptor())
	stranger, err := windows.StringToSid("S-1-5-32-546")
	if err != nil {
		t.Fatal(err)
	}
	there, err := Dial(t.Context(), testPipeName(t))
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	if err := l.SetPermissions(PipeSecurityDescriptor(stranger)); err != nil {
		t.Fatal(err)
	}
	here, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	for _, c := range []net.Conn{there, here} {
		c.SetDeadline(time.Now().Add(10 * time.Second))
	}
	next, err := Dial(t.Context(), testPipeName(t))
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	for _, c := range []net.Conn{there, next} {
		sd, err := windows.GetSecurityInfo(c.(*conn).handle(), windows.SE_KERNEL_OBJECT, windows.DACL_SECURITY_INFORMATION)
		if err != nil || !strings.Contains(sd.String(), "(A;;0x12019b;;;BG)") {
			t.Errorf("access list after the change: %s, %v", sd, err)
		}
	}
	io.WriteString(there, "x")
	if _, err := here.Read(make([]byte, 1)); err != nil {
		t.Errorf("an existing connection: %v", err)
	}
	if err := l.SetPermissions("nonsense"); err == nil {
		t.Error("an invalid security descriptor was accepted")
	}
}
