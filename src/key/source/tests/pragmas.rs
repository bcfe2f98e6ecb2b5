//! Pragmas, and what runs them.

use super::{FILE, NAME, NONE, check};

#[test]
fn pragmas_that_read_files_count() {
    check(&[
        (
            "#pragma a /* */\n/* module */\n_Pragma(\"unroll\") // __FILE__",
            NONE,
        ),
        ("#pragma GCC dependency \"a\"\n", FILE),
        ("#pragma GCC /*\n*/ dependency \"a\"\n", FILE),
        ("#pragma mark \"/*\" */*\n__TIME__ // */", FILE),
        ("#pragma mark /* */ a /*\n__TIME__ // */", FILE),
        ("#pragma clang module import a\n", FILE),
        ("_Pragma(\"GCC dependency \\\"a\\\"\")", FILE),
        ("#define P(x) _Pragma(#x)\nP(GCC dependency \"a\")", FILE),
        ("#define P(x) _Pra##gma(#x)\nP(GCC dependency \"a\")", FILE),
        ("_Pragma(\"message(__FILE__)\")", NAME),
        ("#define M \"module\"\n__pragma(M)", FILE),
        ("_Pragma(_CL_STATIC_ASSERT(ID(mod)ule, 1))", FILE),
        ("int dependency, module;", NONE),
        ("#pragma comment(lib, \"a\")\n", FILE),
        ("#pragma comment\x0b(lib, \"a\")\n", FILE),
        ("#define X (lib, \"a\")\n#pragma comment X\n", FILE),
        ("#pragma /**/ comment X\n", FILE),
        ("_Pragma(\"comment X\")", FILE),
        ("#pragma unroll // see the comment (below)\n", NONE),
        ("#pragma OPENCL EXTENSION a : enable // uncomment\n", NONE),
        ("_Pragma(\"unroll\") int commented, comments;", NONE),
    ]);
}
