-- A module file for Lmod, which `install` writes with MODULE_DIR. Programs of a shell that has loaded it are cached.
help("oclcache: a compiler cache for OpenCL. `oclcache stats` shows what it saved.")
whatis("Name: oclcache")
whatis("Description: compiler cache for OpenCL")

local prefix = "@PREFIX@"
local vendors = "@ICD_DIR@"

prepend_path("PATH", pathJoin(prefix, "bin"))
-- The loaders' own directory needs no variable. Without the library, programs find the drivers as before.
if vendors ~= "/etc/OpenCL/vendors" and isFile(pathJoin(prefix, "lib/liboclcache.so")) then
    setenv("OCL_ICD_VENDORS", vendors)
end
