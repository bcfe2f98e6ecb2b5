//! The table of settings.

use super::value::ValueKind;

/// Which setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// The cache directory.
    Dir,
    /// Forward everything, touch nothing.
    Disable,
    /// Serve, never write.
    ReadOnly,
    /// Build and overwrite.
    Recache,
    /// Keep sources and other texts in entries.
    StoreSource,
    /// When binaries are recorded.
    Record,
    /// Whether a process that leaves a recipe starts a baker.
    Autobake,
    /// Which share of the hits is built from source as well.
    Verify,
    /// The baker audits one in this many hits.
    Audit,
    /// Report what is compiled.
    MustHit,
    /// How large the cache may become.
    MaxSize,
    /// How much of the file system stays free.
    MinFree,
    /// How long an entry is kept unused.
    MaxAge,
    /// Directories that are read after the cache directory.
    SystemDirs,
    /// Who may own those directories.
    TrustedOwners,
    /// Which libraries may answer for the C library's functions without being in keys.
    NeutralLibraries,
    /// Where entries of other machines are.
    Remote,
    /// Whether nothing is sent there.
    RemoteReadonly,
    /// Whose entries from there are used.
    RemoteTrust,
    /// Whether only the system's file says so.
    RemoteTrustLocked,
    /// The file of the key that signs what is sent.
    RemoteKeyFile,
    /// How the helper logs in.
    RemoteCredentials,
    /// Certificates that the helper trusts.
    RemoteCa,
    /// What is sent.
    RemoteContent,
    /// Whether recipes of others are stored here.
    RemoteBake,
    /// How long a program waits for an entry.
    RemoteWait,
    /// How long an entry is kept there unused.
    RemoteTtl,
    /// Which drivers to load.
    Vendors,
    /// Whether platforms are reported.
    Mode,
    /// What is logged.
    Log,
    /// Where to.
    LogFile,
}

/// Which configuration files may make a setting. The environment and the system's file are always trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObeyedFrom {
    /// Also a user's file that another user owns or can write: the setting names nothing to load, open or contact.
    Any,
    /// A user's file only if nobody but root and the effective user can write it: the setting names code, files, directories, hosts
    /// or keys.
    Own,
    /// Only the system's file, and no variable.
    System,
}

/// One row of the table.
#[derive(Debug)]
pub struct Setting {
    /// Which.
    pub name: Name,
    /// The key in the configuration file.
    pub key: &'static str,
    /// What its values are.
    pub kind: ValueKind,
    /// From which files it is obeyed.
    pub obeyed_from: ObeyedFrom,
    /// The environment variable. None: the setting is taken from the system's configuration file only.
    pub variable: Option<&'static str>,
    /// The value if it is set nowhere.
    pub default: &'static str,
    /// What it means.
    pub help: &'static str,
}

/// The directory that was chosen when the package was built; `Some("")` means that the cache is off by default.
pub(super) const BUILT_DIR: Option<&str> = option_env!("OCLCACHE_DEFAULT_DIR");
/// The path of the configuration file, chosen likewise; `Some("")`: there is no such file.
pub(super) const BUILT_CONFIG_DIR: Option<&str> = option_env!("OCLCACHE_DEFAULT_CONFIG_DIR");

/// The path of the system's configuration file, chosen likewise; `Some("")`: there is no such file.
pub(super) const BUILT_SYSTEM_CONFIG_DIR: Option<&str> =
    option_env!("OCLCACHE_DEFAULT_SYSTEM_CONFIG_DIR");

/// The table. Its order is that of [`Name`].
pub const SETTINGS: [Setting; 31] = [
    Setting {
        name: Name::Dir,
        key: "dir",
        kind: ValueKind::Directory,
        obeyed_from: ObeyedFrom::Own,
        variable: Some("OCLCACHE_DIR"),
        default: match BUILT_DIR {
            Some(built) => built,
            None => "$XDG_CACHE_HOME/oclcache or $HOME/.cache/oclcache",
        },
        help: "the cache directory",
    },
    Setting {
        name: Name::Disable,
        key: "disable",
        kind: ValueKind::Switch,
        obeyed_from: ObeyedFrom::Any,
        variable: Some("OCLCACHE_DISABLE"),
        default: "false",
        help: "forward everything to the drivers and touch nothing",
    },
    Setting {
        name: Name::ReadOnly,
        key: "readonly",
        kind: ValueKind::Switch,
        obeyed_from: ObeyedFrom::Any,
        variable: Some("OCLCACHE_READONLY"),
        default: "false",
        help: "serve from the cache, never write",
    },
    Setting {
        name: Name::Recache,
        key: "recache",
        kind: ValueKind::Switch,
        obeyed_from: ObeyedFrom::Any,
        variable: Some("OCLCACHE_RECACHE"),
        default: "false",
        help: "build everything and overwrite what is stored",
    },
    Setting {
        name: Name::StoreSource,
        key: "store_source",
        kind: ValueKind::Switch,
        obeyed_from: ObeyedFrom::Any,
        variable: Some("OCLCACHE_STORE_SOURCE"),
        default: "true",
        help: "keep sources, macro values and build logs in entries; otherwise digests of them",
    },
    Setting {
        name: Name::Record,
        key: "record",
        kind: ValueKind::Word(&["auto", "inline", "bake", "off"]),
        obeyed_from: ObeyedFrom::Any,
        variable: Some("OCLCACHE_RECORD"),
        default: "auto",
        help: "when binaries are stored. inline: inside the miss; bake: later, by `oclcache bake`; off: never; auto: by the driver",
    },
    Setting {
        name: Name::Autobake,
        key: "autobake",
        kind: ValueKind::SwitchOrAuto,
        obeyed_from: ObeyedFrom::Any,
        variable: Some("OCLCACHE_AUTOBAKE"),
        default: "auto",
        help: "whether a program that leaves a recipe starts a baker; auto: not in a batch job or container, which would end the baker",
    },
    Setting {
        name: Name::Verify,
        key: "verify",
        kind: ValueKind::Percent,
        obeyed_from: ObeyedFrom::Any,
        variable: Some("OCLCACHE_VERIFY"),
        default: "0",
        help: "percent of the hits that are also built from source and compared",
    },
    Setting {
        name: Name::Audit,
        key: "audit",
        kind: ValueKind::Count,
        obeyed_from: ObeyedFrom::Any,
        variable: Some("OCLCACHE_AUDIT"),
        default: "1000",
        help: "one hit in this many is compiled again in the background and compared; 0: never",
    },
    Setting {
        name: Name::MustHit,
        key: "must_hit",
        kind: ValueKind::Switch,
        obeyed_from: ObeyedFrom::Any,
        variable: Some("OCLCACHE_MUST_HIT"),
        default: "false",
        help: "report on standard error what is compiled; `oclcache run` then ends with 125",
    },
    Setting {
        name: Name::MaxSize,
        key: "max_size",
        kind: ValueKind::Size,
        obeyed_from: ObeyedFrom::Any,
        variable: Some("OCLCACHE_MAX_SIZE"),
        default: "5Gi",
        help: "the maximum size of all entries on the disk, such as 500M or 5Gi; 0: no limit",
    },
    Setting {
        name: Name::MinFree,
        key: "min_free",
        kind: ValueKind::SizeOrAuto,
        obeyed_from: ObeyedFrom::Any,
        variable: Some("OCLCACHE_MIN_FREE"),
        default: "auto",
        help: "the free space to leave: entries are removed if they take what is missing, else nothing is stored; auto: 1 % of the file system, at most 1Gi",
    },
    Setting {
        name: Name::MaxAge,
        key: "max_age",
        kind: ValueKind::Age,
        obeyed_from: ObeyedFrom::Any,
        variable: Some("OCLCACHE_MAX_AGE"),
        default: "0",
        help: "entries not used for this time, such as 12h or 30d, are removed; 0: never",
    },
    Setting {
        name: Name::SystemDirs,
        key: "system_dirs",
        kind: ValueKind::Directories,
        obeyed_from: ObeyedFrom::Own,
        variable: Some("OCLCACHE_SYSTEM_DIRS"),
        default: "/usr/share/oclcache:/var/cache/oclcache",
        help: "directories of entries that are only read, separated by colons, if no untrusted user can write them",
    },
    Setting {
        name: Name::TrustedOwners,
        key: "trusted_owners",
        kind: ValueKind::Ids,
        obeyed_from: ObeyedFrom::System,
        variable: None,
        default: "",
        help: "ids of users who may own system_dirs, beside root and the user who runs the program; only in the system's file",
    },
    Setting {
        name: Name::NeutralLibraries,
        key: "neutral_libraries",
        kind: ValueKind::Text,
        obeyed_from: ObeyedFrom::System,
        variable: None,
        default: "",
        help: "names of preloaded libraries that change nothing, with blanks between them; only in the system's file",
    },
    Setting {
        name: Name::Remote,
        key: "remote",
        kind: ValueKind::Text,
        obeyed_from: ObeyedFrom::Own,
        variable: Some("OCLCACHE_REMOTE"),
        default: "",
        help: "the store that machines share, such as redis://HOST or a directory's file:///PATH; empty or off: none",
    },
    Setting {
        name: Name::RemoteReadonly,
        key: "remote_readonly",
        kind: ValueKind::Switch,
        obeyed_from: ObeyedFrom::Any,
        variable: Some("OCLCACHE_REMOTE_READONLY"),
        default: "false",
        help: "take entries from `remote`, send none",
    },
    Setting {
        name: Name::RemoteTrust,
        key: "remote_trust",
        kind: ValueKind::Text,
        obeyed_from: ObeyedFrom::Own,
        variable: Some("OCLCACHE_REMOTE_TRUST"),
        default: "",
        help: "public keys of those whose entries are used, as KEY or NAME:KEY with blanks between them; added to those in the system's file",
    },
    Setting {
        name: Name::RemoteTrustLocked,
        key: "remote_trust_locked",
        kind: ValueKind::Switch,
        obeyed_from: ObeyedFrom::System,
        variable: None,
        default: "false",
        help: "only the system's file says whom `remote_trust` names; only in the system's file",
    },
    Setting {
        name: Name::RemoteKeyFile,
        key: "remote_key_file",
        kind: ValueKind::Directory,
        obeyed_from: ObeyedFrom::Own,
        variable: Some("OCLCACHE_REMOTE_KEY_FILE"),
        default: "",
        help: "the file of the secret key that signs what is sent; empty: `remote.key` beside the user's configuration file",
    },
    Setting {
        name: Name::RemoteCredentials,
        key: "remote_credentials",
        kind: ValueKind::Text,
        obeyed_from: ObeyedFrom::Own,
        variable: Some("OCLCACHE_REMOTE_CREDENTIALS"),
        default: "",
        help: "the file of the password or keys for `remote`; aws: as the AWS tools find them; empty: `remote.credentials` beside the user's configuration file",
    },
    Setting {
        name: Name::RemoteCa,
        key: "remote_ca",
        kind: ValueKind::Directory,
        obeyed_from: ObeyedFrom::Own,
        variable: Some("OCLCACHE_REMOTE_CA"),
        default: "",
        help: "a file of certificates (PEM) by which the server of `remote` is known; empty: the system's",
    },
    Setting {
        name: Name::RemoteContent,
        key: "remote_content",
        kind: ValueKind::Word(&["binaries", "all"]),
        obeyed_from: ObeyedFrom::Own,
        variable: Some("OCLCACHE_REMOTE_CONTENT"),
        default: "binaries",
        help: "what is sent. binaries: no sources, paths or texts that quote them; all: whole entries",
    },
    Setting {
        name: Name::RemoteBake,
        key: "remote_bake",
        kind: ValueKind::Switch,
        obeyed_from: ObeyedFrom::Own,
        variable: Some("OCLCACHE_REMOTE_BAKE"),
        default: "false",
        help: "store recipes that others have sent, if they name no file of this machine; `oclcache bake --imported` compiles them",
    },
    Setting {
        name: Name::RemoteWait,
        key: "remote_wait",
        kind: ValueKind::Age,
        obeyed_from: ObeyedFrom::Any,
        variable: Some("OCLCACHE_REMOTE_WAIT"),
        default: "250ms",
        help: "how long a build waits for an entry at most, and never more than a quarter of its expected compile time; 0: not at all",
    },
    Setting {
        name: Name::RemoteTtl,
        key: "remote_ttl",
        kind: ValueKind::Age,
        obeyed_from: ObeyedFrom::Any,
        variable: Some("OCLCACHE_REMOTE_TTL"),
        default: "30d",
        help: "how long an entry that nobody uses is kept in `remote`, where its server counts that; 0: always",
    },
    Setting {
        name: Name::Vendors,
        key: "vendors",
        kind: ValueKind::Text,
        obeyed_from: ObeyedFrom::Own,
        variable: Some("OCLCACHE_VENDORS"),
        default: "",
        help: "the real drivers: directories, .icd files or libraries, separated by colons; empty: the registered ones",
    },
    Setting {
        name: Name::Mode,
        key: "mode",
        kind: ValueKind::Word(&["auto", "icd", "beside"]),
        obeyed_from: ObeyedFrom::Any,
        variable: Some("OCLCACHE_MODE"),
        default: "auto",
        help: "icd: report the drivers' platforms; beside: only cache; auto: report what the loader does not load itself",
    },
    Setting {
        name: Name::Log,
        key: "log",
        kind: ValueKind::LogFilter,
        obeyed_from: ObeyedFrom::Any,
        variable: Some("OCLCACHE_LOG"),
        default: "off",
        help: "a level (error, warn, info, debug, trace) or filter",
    },
    Setting {
        name: Name::LogFile,
        key: "log_file",
        kind: ValueKind::Text,
        obeyed_from: ObeyedFrom::Own,
        variable: Some("OCLCACHE_LOG_FILE"),
        default: "",
        help: "appended to instead of standard error",
    },
];
