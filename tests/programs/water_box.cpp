// A box of TIP3P water with periodic boundaries and PME on OpenMM's OpenCL platform: a real program whose start is
// mostly kernel compilation (18 programs, 67 kernels). Prints energies that do not depend on when it runs.
//
//   g++ -O2 water_box.cpp -o water_box -lOpenMM && ./water_box [waters per side] [steps]
#include <OpenMM.h>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

using namespace OpenMM;

static const double side = 0.31;  // nm of box per water: about the density of water

static void add_water(System& system, NonbondedForce& nonbonded, std::vector<Vec3>& positions, const Vec3& at) {
    const int o = system.addParticle(15.99943);
    const int h1 = system.addParticle(1.007947);
    const int h2 = system.addParticle(1.007947);
    system.addConstraint(o, h1, 0.09572);
    system.addConstraint(o, h2, 0.09572);
    system.addConstraint(h1, h2, 0.15139);
    nonbonded.addParticle(-0.834, 0.315075, 0.635968);
    nonbonded.addParticle(0.417, 1, 0);
    nonbonded.addParticle(0.417, 1, 0);
    nonbonded.addException(o, h1, 0, 1, 0);
    nonbonded.addException(o, h2, 0, 1, 0);
    nonbonded.addException(h1, h2, 0, 1, 0);
    positions.push_back(at);
    positions.push_back(at + Vec3(0.09572, 0, 0));
    positions.push_back(at + Vec3(-0.023999, 0.092663, 0));
}

static void print_energies(Context& context, const char* when) {
    const State state = context.getState(State::Energy);
    std::printf("%s: potential %.3f kJ/mol, kinetic %.3f kJ/mol\n", when, state.getPotentialEnergy(), state.getKineticEnergy());
}

static void simulate(int per_side, int steps) {
    Platform::loadPluginsFromDirectory(Platform::getDefaultPluginsDirectory());
    System system;
    std::vector<Vec3> positions;
    NonbondedForce* nonbonded = new NonbondedForce();  // the system owns it
    for (int x = 0; x < per_side; x++)
        for (int y = 0; y < per_side; y++)
            for (int z = 0; z < per_side; z++)
                add_water(system, *nonbonded, positions, Vec3(x, y, z) * side);
    const double box = per_side * side;
    system.setDefaultPeriodicBoxVectors(Vec3(box, 0, 0), Vec3(0, box, 0), Vec3(0, 0, box));
    nonbonded->setNonbondedMethod(NonbondedForce::PME);
    nonbonded->setCutoffDistance(0.9);
    system.addForce(nonbonded);

    VerletIntegrator integrator(0.001);
    Platform& platform = Platform::getPlatformByName("OpenCL");
    Context context(system, integrator, platform);
    context.setPositions(positions);
    std::printf("%d waters on %s\n", per_side * per_side * per_side, platform.getPropertyValue(context, "DeviceName").c_str());
    print_energies(context, "at the start");
    context.setVelocitiesToTemperature(300, 1);
    integrator.step(steps);
    print_energies(context, "at the end");
}

int main(int argc, char** argv) {
    try {
        simulate(argc > 1 ? std::atoi(argv[1]) : 8, argc > 2 ? std::atoi(argv[2]) : 10);
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "water_box: %s\n", error.what());
        return 1;
    }
}
