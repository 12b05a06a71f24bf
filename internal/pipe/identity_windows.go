package pipe

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Identity is who a process acts as.
type Identity struct {
	User   *windows.SID
	Groups []*windows.SID // those that count for it: a filtered administrator is in none of theirs
	PID    int
}

// firstBytes is how much of what a client says is read to learn who it is.
const firstBytes = 512

// tokenIsAppContainer is a question to a token, as winnt.h has it.
const tokenIsAppContainer = 29

// maxSID is the longest SID, in bytes.
const maxSID = 68

var (
	advapi32       = windows.NewLazySystemDLL("advapi32.dll")
	kernel32       = windows.NewLazySystemDLL("kernel32.dll")
	impersonatePro = advapi32.NewProc("ImpersonateNamedPipeClient")
	peekPro        = kernel32.NewProc("PeekNamedPipe")
)

// impersonate has this thread act as the client of a pipe.
var impersonate = func(pipe windows.Handle) error {
	if ok, _, err := impersonatePro.Call(uintptr(pipe)); ok == 0 {
		return err
	}
	return nil
}

// revert has this thread act as this process again.
var revert = windows.RevertToSelf

// ErrConfined is the error of a client that runs in a sandbox: what its user may do it may
// not, but for what is opened to it.
var ErrConfined = errors.New("programs in a sandbox (app container or restricted token) have no access to queuectl")

// confined reports whether a token is of a program in a sandbox.
var confined = func(t windows.Token) (bool, error) {
	var contained, n uint32
	if err := windows.GetTokenInformation(t, tokenIsAppContainer, (*byte)(unsafe.Pointer(&contained)), 4, &n); err != nil {
		return false, err
	}
	restricted, err := t.IsRestricted()
	if errors.Is(err, windows.ERROR_INVALID_FUNCTION) { // Wine restricts none
		err = nil
	}
	return contained != 0 || restricted, err
}

// ClientOf is who has opened the other end of a connection that Listen's has accepted.
// Of one that did not ask to be known from the start, which a program does by
// SECURITY_SQOS_PRESENT, Windows tells only once something was read: ClientOf then waits
// for its first bytes, as long as the connection's deadline allows, and Read gives them
// afterwards. No other Read may be under way.
func ClientOf(c net.Conn) (Identity, error) {
	p, ok := c.(*conn)
	if !ok {
		return Identity{}, errors.New("the connection is not a named pipe")
	}
	id, err := p.client()
	if errors.Is(err, windows.ERROR_CANNOT_IMPERSONATE) {
		if err = p.readAhead(); err == nil {
			id, err = p.client()
		}
	}
	if err != nil {
		return Identity{}, fmt.Errorf("identify the client of the pipe: %w", err)
	}
	return id, nil
}

// errUnnamed is temporary: those who are waited for have until their deadline.
var errUnnamed = errors.New("too many connected clients have not sent anything yet")

func (c *conn) readAhead() error {
	select {
	case c.unnamed <- struct{}{}:
		defer func() { <-c.unnamed }()
	default:
		return errUnnamed
	}
	b := make([]byte, firstBytes)
	n, err := c.winPipe.Read(b)
	c.ahead = append(c.ahead, b[:n]...)
	return err
}

// client asks who the client is, on a thread that is nobody's for that moment. If it
// cannot become this process again the thread dies with its goroutine.
func (c *conn) client() (id Identity, err error) {
	var pid uint32
	if err := windows.GetNamedPipeClientProcessId(c.handle(), &pid); err != nil {
		return Identity{}, err
	}
	var token windows.Token
	asked := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := impersonate(c.handle())
		if err == nil {
			err = windows.OpenThreadToken(windows.CurrentThread(), windows.TOKEN_QUERY, true, &token)
			if back := revert(); back != nil {
				asked <- errors.Join(err, back)
				return
			}
		}
		runtime.UnlockOSThread()
		asked <- err
	}()
	if err = <-asked; token != 0 {
		defer token.Close()
	}
	if err != nil {
		return Identity{}, err
	}
	in, err := confined(token)
	if err == nil && in {
		err = ErrConfined
	}
	if err != nil {
		return Identity{}, err
	}
	id, err = identity(token)
	id.PID = int(pid)
	return id, err
}

// ServerOf is whose a pipe is that Dial has connected to, without groups: its owner. Only
// a process that acts as that account, or as a group that may own things (of those that
// people are in: the elevated administrators), can have made the pipe, and whom the pipe
// lets in may ask. Its server's token, which would say more, an ordinary user may not
// open. The PID is what the pipe says of who has served this connection.
func ServerOf(c net.Conn) (Identity, error) {
	p, ok := c.(*conn)
	if !ok {
		return Identity{}, errors.New("the connection is not a named pipe")
	}
	var pid uint32
	if err := windows.GetNamedPipeServerProcessId(p.handle(), &pid); err != nil {
		return Identity{}, fmt.Errorf("identify the server of the pipe: %w", err)
	}
	owner, err := ownerOf(p.handle())
	if err != nil {
		return Identity{}, fmt.Errorf("cannot determine the owner of the pipe: %w", err)
	}
	return Identity{User: owner, PID: int(pid)}, nil
}

// ownerOf is whose a pipe is.
func ownerOf(h windows.Handle) (*windows.SID, error) {
	sd, err := windows.GetSecurityInfo(h, windows.SE_KERNEL_OBJECT, windows.OWNER_SECURITY_INFORMATION)
	if err != nil {
		return nil, err
	}
	owner, _, err := sd.Owner()
	if err == nil && owner == nil {
		err = errors.New("the pipe has no owner")
	}
	return owner, err
}

// Self is who this process acts as.
func Self() (Identity, error) {
	id, err := identity(windows.GetCurrentProcessToken())
	id.PID = int(windows.GetCurrentProcessId())
	return id, err
}

// Owner is to whom belongs what this process makes: its user, or of an elevated one the
// administrators.
func Owner() (*windows.SID, error) {
	owner := new(struct { // TOKEN_OWNER
		sid  *windows.SID
		room [maxSID]byte
	})
	var n uint32
	if err := windows.GetTokenInformation(windows.GetCurrentProcessToken(), windows.TokenOwner, (*byte)(unsafe.Pointer(owner)), uint32(unsafe.Sizeof(*owner)), &n); err != nil {
		return nil, fmt.Errorf("cannot determine the default owner of new files: %w", err)
	}
	return owner.sid.Copy()
}

// counts reports whether a group of a token counts: not one that only denies, nor the one
// of the logon, which nobody can be put in.
func counts(attributes uint32) bool {
	const mask = windows.SE_GROUP_ENABLED | windows.SE_GROUP_USE_FOR_DENY_ONLY | windows.SE_GROUP_LOGON_ID
	return attributes&mask == windows.SE_GROUP_ENABLED
}

// identity is what a token says.
func identity(t windows.Token) (Identity, error) {
	user, err := t.GetTokenUser()
	if err != nil {
		return Identity{}, fmt.Errorf("cannot determine the Windows user of a process (from its access token): %w", err)
	}
	groups, err := t.GetTokenGroups()
	if err != nil {
		return Identity{}, fmt.Errorf("cannot determine the Windows groups of a process (from its access token): %w", err)
	}
	id := Identity{}
	if id.User, err = user.User.Sid.Copy(); err != nil {
		return Identity{}, err
	}
	for _, g := range groups.AllGroups() {
		if !counts(g.Attributes) {
			continue
		}
		sid, err := g.Sid.Copy()
		if err != nil {
			return Identity{}, err
		}
		id.Groups = append(id.Groups, sid)
	}
	return id, nil
}

// OwnerOnly is the security descriptor of what this user, the system and administrators
// may use.
func OwnerOnly() string { return Descriptor() }

// Descriptor is the security descriptor of a pipe that this user, the system and
// administrators may serve and use, and that clients may use. Nobody on another machine
// can, whoever they are: the pipe is not there for them. Sessions that came over the network,
// as those of ssh, are of this one.
func Descriptor(clients ...*windows.SID) string {
	var b strings.Builder
	b.WriteString("D:P(A;;GA;;;SY)(A;;GA;;;BA)")
	if self, err := Self(); err == nil { // else the two are enough
		fmt.Fprintf(&b, "(A;;GA;;;%s)", self.User)
	}
	for _, sid := range clients {
		fmt.Fprintf(&b, "(A;;%#x;;;%s)", connectRight, sid)
	}
	return b.String()
}

// HungUp reports whether the other end of a pipe is closed.
func HungUp(c net.Conn) bool {
	p, ok := c.(*conn)
	if !ok {
		return true
	}
	var waiting uint32
	there, _, _ := peekPro.Call(uintptr(p.handle()), 0, 0, 0, uintptr(unsafe.Pointer(&waiting)), 0)
	return there == 0
}
