//! `oclcache install --user` with the helper of the remote level beside the command.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::user::{architecture, build, home};
use super::{files, shell};

#[test]
fn a_helper_beside_the_command_is_installed_and_uninstalled_with_it() {
    let world = build();
    let (helper, content) = (world.sandbox.path("bin/oclcache-remote"), "the helper\n");
    fs::write(&helper, content).expect("written");
    fs::set_permissions(&helper, PermissionsExt::from_mode(0o700)).expect("changed");
    let planned = shell(&world, "oclcache install --user --dry-run").ok();
    let copy = home(&world).join(format!(
        ".local/lib/oclcache/{}/oclcache-remote",
        architecture()
    ));
    let step = format!("copy {}\n  to {}\n", helper.display(), copy.display());
    assert!(planned.stderr.contains(&step), "{}", planned.stderr);
    shell(&world, "oclcache install --user").ok();
    assert_eq!(fs::read_to_string(&copy).expect("copied"), content);
    let mode = copy.metadata().expect("its mode").permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);
    // The copy installs itself again, with its helper.
    let installed = files(&home(&world));
    shell(&world, "rm -r bin; ~/.local/bin/oclcache install --user").ok();
    assert_eq!(files(&home(&world)), installed);
    shell(&world, "~/.local/bin/oclcache uninstall --user").ok();
    assert_eq!(fs::read_dir(home(&world)).expect("listed").count(), 0);
}
