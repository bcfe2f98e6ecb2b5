//! Functions and data that any library may answer for without a change of what is compiled.
//!
//! - Allocation of memory: no result depends on where memory is. C and C++ let each program replace these functions.
//! - What the compiler makes of the C++ standard library's headers in each library that uses them: inline functions, instances of
//!   templates, type information. The linker marks them as weak, and C++ requires all definitions of one to be the same (the one
//!   definition rule), so that the dynamic linker may take any. Programs in C++ have hundreds, of which a linker exports those that a
//!   library has as well. The name has to consist of the standard library's own types: `std::vector<int>` may come from anywhere, and
//!   `std::vector<llvm::Value *>` only from another compiler, perhaps of another version.
//!   Link-time optimization makes some of them strong (PoCL 3.1 as Debian builds it). Data without code are the same nevertheless: type
//!   information, which the C++ ABI prescribes, and variables of inline functions.
//! - The type information and virtual tables of the standard library's templates for types of another library, such as
//!   `std::shared_ptr` keeps for a class of Clang's, in an object that needs that very library, which has them as well. Two drivers
//!   that are made with one compiler have them from whichever was opened first (measured: PoCL 3.1 behind rusticl 22.3).
//! - What raises C++ exceptions and counts references to them. GCC's toolsets for old systems put these functions into each library, and
//!   modules of Python export them (measured: numpy's and PyOpenCL's wheels). Each does what its name says.
//!
//! A definition of another such name that is not weak is somebody's own, or another standard library: it counts.

/// Whether a function allocates memory.
pub fn allocates(name: &[u8]) -> bool {
    const C: [&[u8]; 17] = [
        b"malloc",
        b"calloc",
        b"realloc",
        b"reallocarray",
        b"free",
        b"memalign",
        b"aligned_alloc",
        b"posix_memalign",
        b"valloc",
        b"pvalloc",
        b"malloc_usable_size",
        b"cfree",
        b"mallopt",
        b"mallinfo",
        b"mallinfo2",
        b"malloc_stats",
        b"malloc_trim",
    ];
    // Operators new and delete of C++ (Itanium C++ ABI, 5.1.3).
    const CPP: [&[u8]; 4] = [b"_Znw", b"_Zna", b"_Zdl", b"_Zda"];
    C.contains(&name) || CPP.iter().any(|begin| name.starts_with(begin))
}

/// Whether a name outside of `std` is the standard library's: it begins with two underscores, which C++ reserves for the compiler and
/// its libraries (`__gnu_cxx`, `__va_list_tag`), or is a type of the C library that std's functions take.
fn is_reserved(name: &[u8]) -> bool {
    name.starts_with(b"__") || [&b"_IO_FILE"[..], b"timespec", b"tm"].contains(&name)
}

/// Whether a function throws an exception of the C++ standard library, or counts references to one.
pub fn is_of_exceptions(name: &[u8]) -> bool {
    if name.starts_with(b"_ZNSt15__exception_ptr13exception_ptr") {
        return true;
    }
    let length = name.strip_prefix(b"_ZSt").map(Mangled);
    let identifier = length.and_then(|mut rest| Some(rest.identifier()?.starts_with(b"__throw_")));
    identifier == Some(true)
}

/// What is open where a part of a mangled name begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    /// A qualified name; `is_begun` if its first part, which was the standard library's, is there.
    Qualified { is_begun: bool },
    /// Arguments of a template, a function type, a pack or an expression.
    List,
    /// A function in which something is defined.
    Function,
    /// A value whose type has a name.
    Value,
}

/// Whether a mangled name consists of names of the C++ standard library and built-in types alone (Itanium C++ ABI, 5.1). What is not
/// understood does not.
pub fn is_of_standard_library(name: &[u8]) -> bool {
    let mut rest = Mangled(name);
    if !rest.skip(b"_Z") {
        return false;
    }
    let is_special = rest.skip_special();
    let begins_well = match rest.0 {
        [b'N' | b'Z', ..] | [b'S', b't' | b'a' | b's' | b'i' | b'o' | b'd', ..] => true,
        _ => is_special,
    };
    begins_well && rest.names_standard_library_only()
}

/// Whether a mangled name is that of type information, of a variable in a function, or of the guard of one (Itanium C++ ABI, 5.1.4 and
/// 5.1.6). Virtual tables have code, and other variables may be another library's own: `std::cout`, the numbers of locales' facets.
pub fn is_inert(name: &[u8]) -> bool {
    let begins: [&[u8]; 4] = [b"_ZTI", b"_ZTS", b"_ZZ", b"_ZGVZ"];
    begins.iter().any(|begin| name.starts_with(begin))
}

/// Whether a name is that of type information or of a virtual table of a template of the C++ standard library, for any types.
pub fn is_type_of_standard_template(name: &[u8]) -> bool {
    let mut rest = Mangled(name);
    let is_type = rest.skip(b"_ZT") && [b"V", b"I", b"S", b"T"].iter().any(|kind| rest.skip(*kind));
    is_type && (rest.skip(b"St") || rest.skip(b"NSt"))
}

/// What is left of a mangled name.
struct Mangled<'a>(&'a [u8]);

impl<'a> Mangled<'a> {
    fn skip(&mut self, text: &[u8]) -> bool {
        let rest = self.0.strip_prefix(text);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn skip_while(&mut self, is_wanted: impl Fn(u8) -> bool) {
        let length = self.0.iter().take_while(|byte| is_wanted(**byte)).count();
        self.0 = &self.0[length..];
    }

    /// Virtual tables, type information, guards, and functions that adjust a pointer.
    fn skip_special(&mut self) -> bool {
        for adjusts in [b"Th", b"Tv"] {
            if self.skip(adjusts) {
                self.skip_while(|byte| byte.is_ascii_digit() || byte == b'n' || byte == b'_');
                return false;
            }
        }
        let kinds: [&[u8]; 6] = [b"TV", b"TI", b"TS", b"TT", b"GV", b"GR"];
        kinds.into_iter().any(|kind| self.skip(kind))
    }

    /// The name that begins here with its length.
    fn identifier(&mut self) -> Option<&'a [u8]> {
        let digits = self.0.iter().take_while(|byte| byte.is_ascii_digit());
        let digits = digits.count();
        let length: usize = str::from_utf8(&self.0[..digits]).ok()?.parse().ok()?;
        let (name, rest) = self.0[digits..].split_at_checked(length)?;
        self.0 = rest;
        Some(name)
    }

    /// An operator with a capital letter, which may be taken for something else.
    fn skip_operator(&mut self) -> bool {
        const OPERATORS: [&[u8]; 12] = [
            b"aS", b"aN", b"pL", b"mI", b"mL", b"dV", b"rM", b"oR", b"eO", b"lS", b"rS", b"cv",
        ];
        OPERATORS.into_iter().any(|operator| self.skip(operator))
    }

    fn names_standard_library_only(&mut self) -> bool {
        let mut open: Vec<Open> = Vec::new();
        // Behind `std::`, or the function in which something is defined.
        let mut is_inside = false;
        while let Some((byte, rest)) = self.0.split_first() {
            let in_name = matches!(open.last(), Some(Open::Qualified { .. }));
            if (in_name || is_inside) && self.skip_operator() {
                is_inside = false;
                continue;
            }
            let mut has_part = false;
            match *byte {
                b'0'..=b'9' => {
                    let is_begun = open.last() == Some(&Open::Qualified { is_begun: true });
                    let Some(name) = self.identifier() else {
                        return false;
                    };
                    if !is_inside && !is_begun && !is_reserved(name) {
                        return false;
                    }
                    has_part = true;
                }
                b'S' => {
                    self.0 = rest;
                    match rest.first() {
                        Some(b't') => {
                            self.0 = &rest[1..];
                            if !in_name {
                                is_inside = true;
                                continue;
                            }
                        }
                        Some(b'a' | b'b' | b's' | b'i' | b'o' | b'd') => self.0 = &rest[1..],
                        _ => {
                            self.skip_while(|byte| {
                                byte.is_ascii_digit() || byte.is_ascii_uppercase()
                            });
                            if !self.skip(b"_") {
                                return false;
                            }
                        }
                    }
                    has_part = true;
                }
                b'T' => {
                    self.0 = rest;
                    self.skip_while(|byte| byte.is_ascii_digit());
                    if !self.skip(b"_") {
                        return false;
                    }
                    has_part = true;
                }
                b'N' => {
                    self.0 = rest;
                    self.skip_while(|byte| b"rVKRO".contains(&byte));
                    open.push(Open::Qualified { is_begun: false });
                    continue;
                }
                b'I' | b'J' | b'F' | b'X' => {
                    self.0 = rest;
                    open.push(Open::List);
                }
                b'Z' => {
                    self.0 = rest;
                    open.push(Open::Function);
                }
                b'L' => {
                    self.0 = rest;
                    match rest.first() {
                        Some(b'a'..=b'z') => {
                            self.0 = &rest[1..];
                            self.skip_value();
                            if !self.skip(b"E") {
                                return false;
                            }
                        }
                        Some(b'N' | b'S') => open.push(Open::Value),
                        _ => return false,
                    }
                }
                b'E' => {
                    self.0 = rest;
                    match open.pop() {
                        Some(Open::Function) => {
                            is_inside = !self.skip(b"s");
                            continue;
                        }
                        Some(Open::Qualified { .. }) => has_part = true,
                        Some(Open::List) => {}
                        Some(Open::Value) | None => return false,
                    }
                }
                b'C' | b'D' if in_name && matches!(rest.first(), Some(b'0'..=b'5')) => {
                    self.0 = &rest[1..];
                }
                b'D' if matches!(
                    rest.first(),
                    Some(b'n' | b'a' | b'c' | b'i' | b's' | b'u' | b'p' | b'o')
                ) =>
                {
                    self.0 = &rest[1..];
                }
                b'B' => {
                    self.0 = rest;
                    if self.identifier().is_none() {
                        return false;
                    }
                }
                b'A' => {
                    self.0 = rest;
                    self.skip_while(|byte| byte.is_ascii_digit());
                    if !self.skip(b"_") {
                        return false;
                    }
                }
                b'_' => {
                    self.0 = rest;
                    self.skip_while(|byte| byte.is_ascii_digit() || byte == b'_');
                }
                b'a'..=b'z' | b'P' | b'R' | b'O' | b'K' | b'V' | b'M' => self.0 = rest,
                _ => return false,
            }
            is_inside = false;
            if !has_part {
                continue;
            }
            match open.last_mut() {
                Some(Open::Qualified { is_begun }) => *is_begun = true,
                // The arguments of a template belong to the type.
                Some(Open::Value) if self.0.first() != Some(&b'I') => {
                    self.skip_value();
                    if !self.skip(b"E") {
                        return false;
                    }
                    open.pop();
                }
                _ => {}
            }
        }
        open.is_empty()
    }

    fn skip_value(&mut self) {
        self.skip_while(|byte| byte.is_ascii_digit() || byte == b'n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_standard_library_are_told_from_those_with_a_type_of_others() {
        for name in [
            "_ZNSt6vectorIiSaIiEE17_M_realloc_insertIJRKiEEEvN9__gnu_cxx17__normal_iteratorIPiS1_EEDpOT_",
            "_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE12_M_constructIPKcEEvT_S8_St20forward_iterator_tag",
            "_ZNKSt3__112basic_stringIcNS_11char_traitsIcEENS_9allocatorIcEEE4sizeEv",
            "_ZTVN10__cxxabiv120__si_class_type_infoE",
            "_ZTISt16_Sp_counted_baseILN9__gnu_cxx12_Lock_policyE2EE",
            "_ZTISt9exception",
            "_ZTIPKc",
            "_ZTSSt19_Sp_make_shared_tag",
            "_ZZNSt19_Sp_make_shared_tag5_S_tiEvE5__tag",
            "_ZGVZNKSt8__detail11_AnyMatcherINSt7__cxx1112regex_traitsIcEELb0ELb0ELb0EEclEcE5__nul",
            "_ZStlsISt11char_traitsIcEERSt13basic_ostreamIcT_ES5_PKc",
            "_ZNSt14basic_ifstreamIcSt11char_traitsIcEED1Ev",
            "_ZNSsaSERKSs",
            "_ZNSolsEi",
            "_ZSt4cout",
            "_ZNSt8__detail9_CompilerINSt7__cxx1112regex_traitsIcEEE18_M_expression_termILb0ELb0EEEbRNS4_13_BracketStateERNS_15_BracketMatcherIS3_XT_EXT0_EEE",
            "_ZSt14__copy_move_a1ILb1EPbbEN9__gnu_cxx11__enable_ifIXsrSt23__is_random_access_iterIT0_NSt15iterator_traitsIS4_E17iterator_categoryEE7__valueESt15_Deque_iteratorIT1_RSA_PSA_EE6__typeES4_S4_SD_",
            "_ZN9__gnu_cxx12__to_xstringINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEcEET_PFiPT0_mPKS8_P13__va_list_tagEmSB_z",
        ] {
            assert!(is_of_standard_library(name.as_bytes()), "{name}");
        }
        for name in [
            "",
            "_Z",
            "malloc",
            "crc32",
            "_Z3foov",
            "_ZlsRSoRKSt6vectorIiSaIiEE",
            "_ZN4llvm5ValueD1Ev",
            "_ZNSt6vectorIN4llvm5ValueESaIS1_EE5clearEv",
            "_ZNSt6vectorIP3FooSaIS1_EE5clearEv",
            "_ZSt4sortIP3FooEvT_S2_",
            "_ZN3std6vectorIiE5clearEv",
            "_ZTI3Foo",
            "_ZTSN4llvm3omp10OMPContextE",
            "_ZNSt4hashIN5clang3FooEEclERKS1_",
            "_ZZN3FoovE1x",
            "_ZNSt6vectorILN3Foo4EnumE2EE5clearEv",
            "_ZNSt6vector",
            "_ZNSt999999999999999999999999vectorE",
            "_ZNSt3fooEE",
            "_ZN9__gnu_cxx",
            "_Z9__gnu_cxxv",
            "_ZNSt6vectorIXsrN4llvm3FooE5valueESaIbEE5clearEv",
        ] {
            assert!(!is_of_standard_library(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn types_of_standard_templates_are_told_from_other_data() {
        for name in [
            "_ZTISt23_Sp_counted_ptr_inplaceIN5clang22PCHContainerOperationsESaIvELN9__gnu_cxx12_Lock_policyE2EE",
            "_ZTVSt23_Sp_counted_ptr_inplaceI3FooSaIvELN9__gnu_cxx12_Lock_policyE2EE",
            "_ZTSNSt6thread11_State_implI3FooEE",
        ] {
            assert!(is_type_of_standard_template(name.as_bytes()), "{name}");
        }
        for name in [
            "_ZTIN5clang22PCHContainerOperationsE",
            "_ZTV3FooSt6vectorIiE",
            "_ZNSt6vectorI3FooE5clearEv",
            "_ZGVSt6vector",
            "_ZT",
            "",
        ] {
            assert!(!is_type_of_standard_template(name.as_bytes()), "{name}");
        }
        for name in [
            "_ZTISt9basic_iosIcE",
            "_ZTSSo",
            "_ZZNSt3fooEvE5__tag",
            "_ZGVZNSt3fooEvE1x",
        ] {
            assert!(is_inert(name.as_bytes()), "{name}");
        }
        for name in [
            "_ZTVSt9basic_iosIcE",
            "_ZTTSo",
            "_ZSt4cout",
            "_ZNSt5ctypeIcE2idE",
            "_ZGVSt3foo",
        ] {
            assert!(!is_inert(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn the_operators_that_allocate_are_told_from_others() {
        for name in [
            "malloc",
            "_Znwm",
            "_ZdaPvSt11align_val_t",
            "_ZnamRKSt9nothrow_t",
        ] {
            assert!(allocates(name.as_bytes()), "{name}");
        }
        for name in ["mallocx", "_ZneRK3FooS1_", "_ZdvRK3FooS1_", "mmap"] {
            assert!(!allocates(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn what_throws_is_told_from_what_does_something_else() {
        for name in [
            "_ZSt28__throw_bad_array_new_lengthv",
            "_ZSt24__throw_out_of_range_fmtPKcz",
            "_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv",
        ] {
            assert!(is_of_exceptions(name.as_bytes()), "{name}");
        }
        for name in [
            "_ZSt11_Hash_bytesPKvmm",
            "_ZSt",
            "_ZSt9__throw",
            "__throw_bad",
        ] {
            assert!(!is_of_exceptions(name.as_bytes()), "{name}");
        }
    }

    /// No name makes it panic or run on.
    #[test]
    fn parts_of_names_are_read_to_their_end() {
        let whole = b"_ZGVZNKSt8__detail11_AnyMatcherINSt7__cxx1112regex_traitsIcEELb0ELN9__gnu_cxx1aE0ELb0EEclEcE5__nul";
        for end in 0..whole.len() {
            for at in 0..end {
                let mut name = whole[..end].to_vec();
                is_of_standard_library(&name);
                name.remove(at);
                is_of_standard_library(&name);
            }
        }
    }
}
