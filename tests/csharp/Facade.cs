// The assembly System.Runtime.InteropServices.RuntimeInformation, by whose name the driver knows types that Mono has in its core
// library. Mono's own copy comes with its development package only, of 23 MB.

using System.Reflection;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;

[assembly: AssemblyVersion("4.0.1.0")]
[assembly: TypeForwardedTo(typeof(RuntimeInformation))]
[assembly: TypeForwardedTo(typeof(OSPlatform))]
[assembly: TypeForwardedTo(typeof(Architecture))]
