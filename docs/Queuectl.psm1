# A client of queuectl's pipe for Windows PowerShell 5 and PowerShell 7, for those who are no administrators too:
#   Import-Module .\Queuectl.psm1
#   Invoke-Queuectl enqueue @{ command = 'echo hi' }
# .NET's own NamedPipeClientStream asks for GENERIC_WRITE, which is also the right to serve the name.

Set-StrictMode -Version 2
$ErrorActionPreference = 'Stop'

Add-Type -Namespace Queuectl -Name Native -MemberDefinition @'
[DllImport("kernel32.dll", CharSet = CharSet.Unicode, SetLastError = true)]
public static extern Microsoft.Win32.SafeHandles.SafeFileHandle CreateFileW(
    string name, uint access, uint share, IntPtr security, uint create, uint flags, IntPtr template);
'@

# Connect-Queuectl opens the pipe of a name. The service learns who calls, and can do nothing as them.
function Connect-Queuectl([string] $Pipe = 'queuectl') {
    $rights = 0x12019B # to read, to write and to see whose it is: FILE_GENERIC_READ | FILE_GENERIC_WRITE without FILE_APPEND_DATA
    $flags = 0x110000  # SECURITY_SQOS_PRESENT | SECURITY_IDENTIFICATION
    $handle = [Queuectl.Native]::CreateFileW("\\.\pipe\$Pipe", $rights, 0, [IntPtr]::Zero, 3, $flags, [IntPtr]::Zero)
    if ($handle.IsInvalid) {
        throw (New-Object ComponentModel.Win32Exception ([Runtime.InteropServices.Marshal]::GetLastWin32Error()))
    }
    New-Object IO.FileStream $handle, ([IO.FileAccess]::ReadWrite), 1, $false
}

# Invoke-Queuectl asks one method, and returns its result; an error of the queue is thrown.
function Invoke-Queuectl([string] $Method, [hashtable] $Params = @{}, [string] $Pipe = 'queuectl') {
    $stream = Connect-Queuectl $Pipe
    try {
        $request = @{ jsonrpc = '2.0'; id = 1; method = $Method; params = $Params } | ConvertTo-Json -Compress -Depth 16
        $bytes = (New-Object Text.UTF8Encoding $false).GetBytes("$request`n")
        $stream.Write($bytes, 0, $bytes.Length)
        $stream.Flush()
        $reader = New-Object IO.StreamReader $stream, (New-Object Text.UTF8Encoding $false)
        $answer = $reader.ReadLine() | ConvertFrom-Json
    } finally {
        $stream.Dispose()
    }
    if ($answer.PSObject.Properties['error']) { throw "$($answer.error.data.code): $($answer.error.message)" }
    $answer.result
}

Export-ModuleMember -Function Connect-Queuectl, Invoke-Queuectl
